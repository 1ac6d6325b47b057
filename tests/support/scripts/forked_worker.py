"""The process that pytest-xdist starts for a forked worker: it gives its descriptors away, and ends with the worker.

The first argument is the path of the socket of ``fork_workers.py``. The others are those of a Python that execnet
starts; the forked process needs none of them.
"""

import os
import signal
import socket
import sys

STANDARD = (0, 1, 2)
MAX_MESSAGE = 16


def main() -> int:
    """Hand the descriptors over, and return the worker's exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker gets it too
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(sys.argv[1])
        socket.send_fds(server, [b"worker"], STANDARD)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in STANDARD[:2]:  # execnet learns by their end that the worker has ended
            os.dup2(null, descriptor)
        code = server.recv(MAX_MESSAGE)
    return int(code) if code else 1


if __name__ == "__main__":
    sys.exit(main())
