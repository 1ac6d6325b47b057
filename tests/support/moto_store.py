"""An S3 server of the package moto, on 127.0.0.1, with its objects in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pyarrow.fs import FileSelector, FileType, S3FileSystem

BUCKET = "lake"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "not-so-secret",
    "SSL_CERT_FILE": os.devnull,
    "SSL_CERT_DIR": os.devnull,
}
"""Environment variables of programs that get only the address of the server.

The server has no TLS. Without the last two, deltalake reads 290 files of certificates for each table that it opens.
"""
SCRIPT = Path(__file__).parent / "scripts" / "s3_server.py"


@dataclass(frozen=True, slots=True)
class MotoStore:
    """A running server with one bucket."""

    endpoint: str

    @property
    def properties(self) -> tuple[tuple[str, str], ...]:
        """The properties, named as in pyiceberg, of a catalog whose tables are in this store."""
        return (
            ("s3.endpoint", self.endpoint),
            ("s3.access-key-id", "tests"),
            ("s3.secret-access-key", "not-so-secret"),
            ("s3.region", "us-east-1"),
        )

    def address(self, prefix: str) -> str:
        """Return the address of a prefix."""
        return f"s3://{BUCKET}/{prefix}?endpoint_override={quote(self.endpoint, safe='')}&region=us-east-1"

    def client(self) -> S3FileSystem:
        """Create a client that may also create buckets."""
        address = self.endpoint.removeprefix("http://")
        return S3FileSystem(access_key="tests", secret_key="not-so-secret", endpoint_override=address, scheme="http",
                            region="us-east-1", allow_bucket_creation=True)  # fmt: skip

    def names_below(self, prefix: str) -> set[str]:
        """List the addresses of all objects below a prefix."""
        selector = FileSelector(f"{BUCKET}/{prefix}", recursive=True, allow_not_found=True)
        found = self.client().get_file_info(selector)
        return {f"s3://{info.path}" for info in found if info.type == FileType.File}


class MotoServer:
    """A server that can be stopped and started again: its objects stay, and connections are refused meanwhile.

    It runs in a process of its own, because deltalake keeps the interpreter's lock while it waits for a response.
    """

    def __init__(self) -> None:
        self.port = 0
        self._is_serving = False
        command = [sys.executable, "-W", "ignore", str(SCRIPT)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def start(self) -> None:
        """Begin to serve; later calls use the same port."""
        self.port = int(self._ask(f"start {self.port}"))
        self._is_serving = True

    def stop(self) -> None:
        """Refuse connections."""
        if self._is_serving:
            self._ask("stop")
            self._is_serving = False

    def close(self) -> None:
        """End the process, which had the objects in memory."""
        self._process.communicate()

    def store(self) -> MotoStore:
        """Create the bucket, and return the store."""
        store = MotoStore(f"http://127.0.0.1:{self.port}")
        store.client().create_dir(BUCKET)
        return store

    def _ask(self, order: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(order, file=self._process.stdin, flush=True)
        answer: str = self._process.stdout.readline()
        return answer


@contextmanager
def moto_store() -> Iterator[MotoStore]:
    """A server with an empty bucket."""
    server = MotoServer()
    try:
        server.start()
        yield server.store()
    finally:
        server.close()
