"""Commands of a laboratory over HTTP, for tests in any language: ``POST /COMMAND`` with its fields as a JSON object.

    POST /advance  {"ms": 45000}      -> 200 {"result": null}
    POST /restore  {"snapshot": 7}    -> 400 {"error": "snapshot 7 is not known"}

The commands are those of ``control.py``. The listener is bound to a loopback address only and asks for no login. Web
pages cannot use it: requests with another host name or from another origin are refused, as by the admin interface. A
body that is not declared as JSON is refused, too: browsers send JSON to another site only after a preflight request.
The listener is not part of the broker that a restore starts again, so its connections stay open. Loop thread only.
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
from tidelog.protocol.foreign_text import decode_json

OPTION = "--laboratory-listener"
JSON = "application/json"


def open_listener(text: str) -> socket.socket:
    """Listen on HOST:PORT, a loopback address. Raises ConfigError, and OSError when the port is taken."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not is_loopback(host) or not (port.isascii() and port.isdecimal() and int(port) <= 65_535):
        raise ConfigError(f"{OPTION} {text}: expected HOST:PORT with a loopback address, such as 127.0.0.1:0")
    listener = socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setblocking(False)
    return listener


def is_loopback(host: str) -> bool:
    """Return whether a listener on this host can be reached only from this machine."""
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
    """Return the refusal of a body that is not declared as JSON, or None for a request that may go on."""
    if request.can_read_body and request.content_type != JSON:
        return refusal(415, f"a body must have the content type {JSON}")
    return None


class Commands:
    """The HTTP handler of the commands."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def answer(self, request: web.Request) -> web.Response:
        """Execute the command of the path with the fields of the body."""
        try:
            fields = decode_json(await request.read() or b"{}")
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            return respond({"error": "the body is not a JSON object"})
        return respond(await self._control.answer({**fields, "command": request.match_info["command"]}))


def respond(answer: dict[str, object]) -> web.Response:
    """Return a response with a command's answer as one line of JSON: status 400 for an error, else 200."""
    status = 400 if "error" in answer else 200
    return web.Response(text=json.dumps(answer) + "\n", status=status, content_type=JSON)
