"""An S3 server of the package moto in this process, on 127.0.0.1: objects lie in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from moto.server import ThreadedMotoServer
from pyarrow.fs import FileSelector, FileType, S3FileSystem

BUCKET = "lake"


@dataclass(frozen=True, slots=True)
class MotoStore:
    """A running server with one bucket."""

    endpoint: str

    @property
    def properties(self) -> tuple[tuple[str, str], ...]:
        """The properties of a catalog whose tables lie here, as pyiceberg names them."""
        return (
            ("s3.endpoint", self.endpoint),
            ("s3.access-key-id", "tests"),
            ("s3.secret-access-key", "not-so-secret"),
            ("s3.region", "us-east-1"),
        )

    def client(self) -> S3FileSystem:
        """A client that may do anything."""
        address = self.endpoint.removeprefix("http://")
        return S3FileSystem(access_key="tests", secret_key="not-so-secret", endpoint_override=address, scheme="http",
                            region="us-east-1", allow_bucket_creation=True)  # fmt: skip

    def names_below(self, prefix: str) -> set[str]:
        """The addresses of all objects below a prefix."""
        selector = FileSelector(f"{BUCKET}/{prefix}", recursive=True, allow_not_found=True)
        found = self.client().get_file_info(selector)
        return {f"s3://{info.path}" for info in found if info.type == FileType.File}


class MotoServer:
    """A server that can be stopped and started: the objects stay, connections are refused meanwhile."""

    def __init__(self) -> None:
        self.port = 0
        self._server: ThreadedMotoServer | None = None

    def start(self) -> None:
        """Serve, on the port of before."""
        self._server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self._server.start()
        _, self.port = self._server.get_host_and_port()

    def stop(self) -> None:
        """Refuse connections."""
        if self._server is not None:
            self._server.stop()
            assert self._server._server is not None
            self._server._server.server_close()
            self._server = None

    def store(self) -> MotoStore:
        """The server's objects, in a bucket that is made."""
        store = MotoStore(f"http://127.0.0.1:{self.port}")
        store.client().create_dir(BUCKET)
        return store


@contextmanager
def moto_store() -> Iterator[MotoStore]:
    """A server with an empty bucket."""
    server = MotoServer()
    server.start()
    try:
        yield server.store()
    finally:
        server.stop()
