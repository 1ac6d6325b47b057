"""Controls of a laboratory over HTTP, for tests in any language: ``POST /COMMAND`` with its words as a JSON object.

    POST /advance  {"ms": 45000}      -> 200 {"result": null}
    POST /restore  {"snapshot": 7}    -> 400 {"error": "snapshot 7 is not known"}

The commands are those of ``control.py``. The listener is on the loopback address alone and asks for no login. A web
page reaches none of it: requests under foreign names and from foreign origins are refused as the admin interface
refuses them. So is a body that is not declared as JSON: a browser asks for leave before it sends JSON to another site.
It is no part of the broker that a restore starts again, so its connections stay. Loop thread only.
"""

from __future__ import annotations

import asyncio
import json
import socket
from ipaddress import ip_address

from aiohttp import web

from tidelog.broker.admin.guard import Hosts, add_headers, make_guard, refusal
from tidelog.broker.laboratory.control import MAX_LINE_BYTES, Control
from tidelog.protocol.config_def import ConfigError

OPTION = "--laboratory-listener"
JSON = "application/json"


def open_listener(text: str) -> socket.socket:
    """Listen on HOST:PORT of the loopback address. Raises ConfigError, OSError when the address is taken."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not is_loopback(host) or not (port.isascii() and port.isdecimal() and int(port) <= 65_535):
        raise ConfigError(f"{OPTION} {text}: expected HOST:PORT of the loopback address, such as 127.0.0.1:0")
    listener = socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setblocking(False)
    return listener


def is_loopback(host: str) -> bool:
    """Return whether a listener on this host is reached from this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def serve_http(control: Control, hosts: Hosts, listener: socket.socket) -> None:
    """Answer commands until cancelled."""
    app = web.Application(middlewares=[make_guard(hosts, refuse_type, MAX_LINE_BYTES)])
    app.on_response_prepare.append(add_headers)
    pages = Commands(control)
    app.router.add_post("/{command}", pages.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        while True:
            await asyncio.Event().wait()
    finally:
        await runner.cleanup()


async def refuse_type(request: web.Request) -> web.Response | None:
    """Refuse a body that is not declared as JSON; None lets it through."""
    if request.can_read_body and request.content_type != JSON:
        return refusal(415, f"a body must have the content type {JSON}")
    return None


class Commands:
    """The page of the commands."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def answer(self, request: web.Request) -> web.Response:
        """Do the command of the path with the words of the body."""
        try:
            words = json.loads(await request.read() or b"{}")
        except ValueError:
            words = None
        if not isinstance(words, dict):
            return respond({"error": "the body is not a JSON object"})
        return respond(await self._control.answer({**words, "command": request.match_info["command"]}))


def respond(answer: dict[str, object]) -> web.Response:
    """Write a command's answer as a line of JSON, which a shell shows as such."""
    status = 400 if "error" in answer else 200
    return web.Response(text=json.dumps(answer) + "\n", status=status, content_type=JSON)
