"""``tidelog metadata describe``: a directory or controllers, text or JSON, one clear line for each error."""

from __future__ import annotations

import json
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.kafka_directories import KafkaDirectory
from tests.support.model_quorum import ModelQuorum, UnreachableError
from tidelog import cli
from tidelog.broker.cluster.observing.observer import ObserverConfig
from tidelog.broker.cluster.quorum import Address
from tidelog.metadata_follower import CatchUpError, MetadataFollower
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.header import decode_request_header
from tidelog.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidelog.protocol.messages.fetch import FetchRequest
from tidelog.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from tidelog.protocol.metadata_records.records import (
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    QuotaEntityData,
    RegisterBrokerRecord,
    RegisteredEndpoint,
    TopicRecord,
    UserScramCredentialRecord,
)
from tidelog.protocol.schema.fields import Message

ID = bytes(range(16))
CONTROLLER_APIS = {ApiKey.FETCH: (0, 18), ApiKey.FETCH_SNAPSHOT: (0, 1), ApiKey.API_VERSIONS: (0, 4)}


def some_records() -> list[Message]:
    endpoint = RegisteredEndpoint(name="PLAINTEXT", host="::1", port=9092, security_protocol=0)
    return [
        FeatureLevelRecord(name="metadata.version", feature_level=30),
        RegisterBrokerRecord(broker_id=3, broker_epoch=1, end_points=[endpoint], rack="a", fenced=True),
        TopicRecord(name="orders", topic_id=ID),
        PartitionRecord(partition_id=0, topic_id=ID, replicas=[3, 4], isr=[3], leader=3, leader_epoch=2),
        ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="5"),
        ConfigRecord(resource_type=4, resource_name="", name="ssl.key.password", value="never-print-this"),
        ClientQuotaRecord(
            entity=[QuotaEntityData(entity_type="user", entity_name=None)], key="consumer_byte_rate", value=7.0
        ),
        UserScramCredentialRecord(name="alice", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"k", iterations=9),
    ]


def directory_of(tmp_path: Path) -> Path:
    source = KafkaDirectory(tmp_path / "kafka")
    source.add_metadata([(record, 0) for record in some_records()])
    return source.path


TEXT = """\
  metadata.version 30
  3  PLAINTEXT://[::1]:9092  epoch 1  rack a  fenced
  orders  id AAECAwQFBgcICQoLDA0ODw  1 partitions
    0  leader 3  epoch 2  replicas 3,4  isr 3
  topic orders: retention.ms=5
  broker (all): ssl.key.password=[redacted]
  user (default): consumer_byte_rate=7
  alice  SCRAM-SHA-256  9 iterations
"""


@pytest.mark.parametrize("below", ["", "__cluster_metadata-0"])
def test_a_directory_is_described(tmp_path: Path, below: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["metadata", "describe", "--directory", str(directory_of(tmp_path) / below)]) == 0
    printed = capsys.readouterr().out
    for line in TEXT.splitlines():
        assert line in printed.splitlines()


def test_json_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["metadata", "describe", "--directory", str(directory_of(tmp_path)), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["topics"][0]["name"] == "orders"
    assert found["offset"] >= len(some_records()) - 1


def damage(directory: Path) -> None:
    (segment,) = (directory / "__cluster_metadata-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)


def one_line_of(arguments: list[str], capsys: pytest.CaptureFixture[str], exit_code: int = 1) -> str:
    """Run a command that fails, and return its error."""
    assert cli.main(["metadata", "describe", *arguments]) == exit_code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("tidelog metadata describe: ")
    assert printed.err.count("\n") == 1
    return printed.err


def test_errors_of_a_directory_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such directory" in one_line_of(["--directory", str(tmp_path / "none")], capsys)
    assert "neither a __cluster_metadata-0" in one_line_of(["--directory", str(tmp_path)], capsys)
    directory = directory_of(tmp_path)
    damage(directory)
    assert "checksum" in one_line_of(["--directory", str(directory)], capsys)


@pytest.mark.parametrize(
    ("given", "message", "exit_code"),
    [
        ("", "expected HOST:PORT", 2),
        ("localhost:1,x:y", "'x:y': expected HOST:PORT", 2),
        ("127.0.0.1:1", "no metadata within 0.2 s: cannot connect to 127.0.0.1:1", 1),
    ],
)
def test_errors_of_controllers_are_reported(
    given: str, message: str, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in one_line_of(["--bootstrap-controller", given, "--timeout", "0.2"], capsys, exit_code)


class ModelServer(socketserver.ThreadingTCPServer):
    """One node of a model quorum on a real socket; a node that is down closes its connections."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, quorum: ModelQuorum, apis: dict[ApiKey, tuple[int, int]]) -> None:
        super().__init__(("127.0.0.1", 0), ModelConnection)
        self.quorum = quorum
        self.apis = apis
        self.address = Address(*self.server_address[:2])  # type: ignore[arg-type]


class ModelConnection(socketserver.StreamRequestHandler):
    """One connection to it."""

    server: ModelServer

    def handle(self) -> None:
        while head := self.rfile.read(4):
            frame = self.rfile.read(struct.unpack(">i", head)[0])
            try:
                answered = self.answer(frame)
            except UnreachableError:
                return
            self.wfile.write(struct.pack(">i", len(answered)) + answered)

    def answer(self, frame: bytes) -> bytes:
        header, at = decode_request_header(frame)
        start = struct.pack(">i", header.correlation_id)
        if header.api_key == ApiKey.API_VERSIONS:
            keys = [ApiVersion(api_key=key, min_version=a, max_version=b) for key, (a, b) in self.server.apis.items()]
            return start + ApiVersionsResponse(api_keys=keys).encode(header.api_version)
        schema = FetchRequest if header.api_key == ApiKey.FETCH else FetchSnapshotRequest
        request = schema.decode(memoryview(frame)[at:], header.api_version)
        answer = self.server.quorum.answer(self.server.address, request)
        return start + b"\0" + bytes(answer.encode(header.api_version))


@contextmanager
def serving(quorum: ModelQuorum, apis: dict[ApiKey, tuple[int, int]] = CONTROLLER_APIS) -> Iterator[list[ModelServer]]:
    servers = [ModelServer(quorum, apis) for _ in quorum.addresses]
    quorum.addresses = {node: server.address for node, server in zip(quorum.addresses, servers, strict=True)}
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield servers
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


def test_controllers_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    quorum = ModelQuorum()
    quorum.reign.append(*some_records())
    quorum.commit()
    quorum.elect(3)
    quorum.commit()
    with serving(quorum):
        listed = ",".join(str(address) for address in quorum.addresses.values())
        assert cli.main(["metadata", "describe", "--bootstrap-controller", listed]) == 0
    printed = capsys.readouterr().out
    for line in TEXT.splitlines():
        assert line in printed.splitlines()


def test_a_follower_goes_where_the_leader_goes() -> None:
    quorum = ModelQuorum()
    quorum.reign.append(*some_records())
    quorum.commit()
    quorum.take_snapshot()
    with serving(quorum), MetadataFollower(ObserverConfig(tuple(quorum.addresses.values()), max_bytes=64)) as follower:
        follower.catch_up(60)
        for leader in (2, 3, 1):
            quorum.elect(leader)
            quorum.commit()
            quorum.down = {quorum.reign.leader % 3 + 1}
            image = follower.catch_up(60)
            while image.epoch < quorum.reign.epoch:
                image = follower.catch_up(60)
            assert image == list(quorum.images().values())[-1]


def test_a_quorum_that_commits_nothing_is_given_up() -> None:
    quorum = ModelQuorum(1)
    quorum.elect(1)
    with (
        serving(quorum),
        MetadataFollower(ObserverConfig(tuple(quorum.addresses.values()))) as follower,
        pytest.raises(CatchUpError, match="has committed nothing in its epoch"),
    ):
        follower.catch_up(0.05)


@pytest.mark.parametrize(
    ("apis", "message"),
    [
        ({ApiKey.FETCH: (4, 18)}, "is not a controller: it does not serve FetchSnapshot"),
        ({ApiKey.FETCH: (4, 16), ApiKey.FETCH_SNAPSHOT: (0, 0)}, "serves Fetch up to version 16"),
    ],
)
def test_other_addresses_are_refused(
    apis: dict[ApiKey, tuple[int, int]], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    quorum = ModelQuorum(1)
    with serving(quorum, apis):
        assert message in one_line_of(["--bootstrap-controller", str(quorum.addresses[1])], capsys)
