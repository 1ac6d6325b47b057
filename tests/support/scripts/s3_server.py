"""An S3 server by the package moto, controlled by standard input: ``s3_server.py``.

Each line of standard input is answered by a line of standard output. ``start PORT`` serves on 127.0.0.1 (0: any port),
and is answered by the port. After ``stop`` connections are refused. Objects are in memory, and stay after a ``stop``.

moto lists its own directory for each request and logs the request. This script prevents both, which saves a quarter of
moto's CPU time.
"""

from __future__ import annotations

import logging
import sys

from moto import backends
from moto.server import ThreadedMotoServer


def main() -> None:
    """Execute the lines of standard input until it ends."""
    names = frozenset(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: names
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server: ThreadedMotoServer | None = None
    for line in sys.stdin:
        order, *rest = line.split()
        if order == "start":
            server = ThreadedMotoServer("127.0.0.1", int(rest[0]), verbose=False)
            server.start()
            print(server.get_host_and_port()[1], flush=True)
        elif server is not None:
            server.stop()
            assert server._server is not None
            server._server.server_close()
            server = None
            print("stopped", flush=True)


if __name__ == "__main__":
    main()
