"""A real S3 server for tests: S3Proxy on 127.0.0.1, with its objects in a directory.

Without Java 17 or Maven the test is skipped.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from benchmarks.rivals import kafka_jars as jars
from benchmarks.rivals.process import free_port
from tests.support.jvm import SMALL_HEAP, WITHOUT_ARCHIVE
from tests.support.kafka_jars import or_skip

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

SERVER = jars.Artifact("org.gaul", "s3proxy", "2.6.0", bare=True, classifier="jar-with-dependencies")
START_S = 60
BUCKET = "logs"
KEY, SECRET = "tests", "not-so-secret"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",  # the server knows no checksums of uploads in pieces
}
"""Environment variables of clients; only writers need the last one."""


class ObjectStore:
    """A running server with one bucket; its methods use pyarrow's client."""

    def __init__(self, port: int) -> None:
        self.port = port

    def address(self, prefix: str = "", bucket: str = BUCKET) -> str:
        """Return the address of a prefix, as the option ``path`` of readers expects it."""
        endpoint = quote(f"http://127.0.0.1:{self.port}", safe="")
        return f"s3://{bucket}/{prefix}?endpoint_override={endpoint}&region=us-east-1"

    def client(self) -> S3FileSystem:
        """Create a client that may write and create buckets."""
        from pyarrow.fs import S3FileSystem

        return S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            endpoint_override=f"http://127.0.0.1:{self.port}",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    def copy(self, directory: Path, prefix: str) -> str:
        """Copy a data directory below ``prefix``, as ``aws s3 sync`` would; return its address."""
        from pyarrow.fs import LocalFileSystem, copy_files

        copy_files(
            str(directory),
            f"{BUCKET}/{prefix}",
            source_filesystem=LocalFileSystem(),
            destination_filesystem=self.client(),
            use_threads=False,
        )
        return self.address(prefix)

    def put(self, key: str, data: bytes) -> None:
        """Put one object."""
        with self.client().open_output_stream(f"{BUCKET}/{key}") as stream:
            stream.write(data)

    def remove(self, key: str) -> None:
        """Delete one object."""
        self.client().delete_file(f"{BUCKET}/{key}")


@contextmanager
def object_store(work: Path) -> Iterator[ObjectStore]:
    """A server whose files are in ``work``. The variables of ENVIRONMENT must be set."""
    jar = or_skip(lambda: jars.resolve("s3proxy", (SERVER,), jars.BUILD / "s3proxy"))
    port = free_port()
    (work / "objects").mkdir()
    settings = {
        "s3proxy.endpoint": f"http://127.0.0.1:{port}",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": KEY,
        "s3proxy.credential": SECRET,
        "s3proxy.ignore-unknown-headers": "true",
        "jclouds.provider": "filesystem-nio2",
        "jclouds.identity": KEY,
        "jclouds.credential": SECRET,
        "jclouds.filesystem.basedir": str(work / "objects"),
    }
    (work / "s3proxy.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (archive,) = jar.glob("s3proxy-*.jar")
    command = [jars.java(), *SMALL_HEAP, *WITHOUT_ARCHIVE, "-jar", str(archive), "--properties", "s3proxy.conf"]
    with (work / "s3proxy.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=work, stdout=log, stderr=log)
    try:
        _wait_until_it_serves(process, port, work / "s3proxy.log")
        store = ObjectStore(port)
        store.client().create_dir(BUCKET)
        yield store
    finally:
        process.terminate()
        process.wait(30)


def _wait_until_it_serves(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    import socket
    import time

    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"S3Proxy does not serve:\n{log.read_text()[-2000:]}")
