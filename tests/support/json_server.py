"""A JSON service on 127.0.0.1 for tests: a function of method, path, headers and body answers each request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[str, str, Mapping[str, str], bytes], tuple[int, Any]]
"""Method, path, headers and body of a request -> status and JSON of its answer."""


@contextmanager
def json_server(answer: Answer, content_type: str = "application/json") -> Iterator[str]:
    """Serve inside the block, each request in a thread of its own; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, found = answer(self.command, self.path, dict(self.headers), body)
            data = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _serve  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="JSON server", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
