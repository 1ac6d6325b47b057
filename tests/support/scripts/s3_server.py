"""Serve S3 by the package moto, as standard input says: ``s3_server.py``.

Each line of standard input is answered by one of standard output. ``start PORT`` serves on 127.0.0.1 (0: any port) and
is answered by the port, ``stop`` refuses connections. Objects lie in memory and stay.

moto looks through its own directory for each request and logs each. Here it does neither: a quarter of its CPU time.
"""

from __future__ import annotations

import logging
import sys

from moto import backends
from moto.server import ThreadedMotoServer


def main() -> None:
    """Answer until standard input ends."""
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
