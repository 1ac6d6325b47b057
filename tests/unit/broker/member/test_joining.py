"""A member before it contacts its cluster: configuration, directories, logs that belong to other brokers, producer
ids."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidelog.broker.cluster.observing.metadata_position import NOWHERE, MetadataPosition
from tidelog.broker.cluster.quorum import Address
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.errors import StartError
from tidelog.broker.member.config import fetcher_config, member_config
from tidelog.broker.member.connections.frame_link import MAX_FRAME_BYTES
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.directories import (
    claim_member_directories,
    clean_stop_of,
    keep_position,
    move_strays,
    read_position,
)
from tidelog.broker.member.producer_ids import ProducerIdBlocks
from tidelog.broker.metadata.metadata_image import (
    EMPTY_IMAGE,
    BrokerRegistration,
    Endpoint,
    MetadataImage,
    PartitionState,
    TopicState,
)
from tidelog.log.config import LogConfig
from tidelog.log.files.checkpoints import (
    MetaProperties,
    write_clean_shutdown,
    write_meta_properties,
    write_partition_metadata,
)
from tidelog.log.manager import LogManager
from tidelog.log.system.file_system import FileSystem, OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.errors import CoordinatorLoadInProgressError, NotControllerError

FILE_SYSTEM = OsFileSystem()
CLUSTER, OTHER = "5L6g3nShT-eMCtK--X86sw", "Vb2vsuBdQ3CKnPMTrG2uGg"
NODE = 7
TOPIC_ID, OTHER_ID = b"t" * 16, b"o" * 16
GIVEN = {
    "process.roles": "broker",
    "node.id": str(NODE),
    "controller.quorum.bootstrap.servers": "a:9093,[::1]:9094",
    "controller.listener.names": "CONTROLLER",
    "listeners": "INSIDE://0.0.0.0:9092,OUTSIDE://:9192",
    "advertised.listeners": "INSIDE://inner:9092,OUTSIDE://outer:443",
    "inter.broker.listener.name": "INSIDE",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "broker.rack": "r1",
}


def config(directory: Path | None = None, **texts: str | None) -> BrokerConfig:
    changed = {**GIVEN, **{key.replace("_", "."): value for key, value in texts.items()}}
    if directory is not None:
        changed["log.dirs"] = f"{directory / 'a'},{directory / 'b'}"
    return BrokerConfig({key: value for key, value in changed.items() if value is not None})


def test_a_members_endpoints_and_controllers_come_from_its_configuration() -> None:
    found = member_config(config())
    assert found.controllers == (Address("a", 9093), Address("::1", 9094))
    assert found.endpoints == (Endpoint("INSIDE", "inner", 9092, 0), Endpoint("OUTSIDE", "outer", 443, 0))
    assert (found.rack, found.heartbeat_interval_ms, found.registration_timeout_ms) == ("r1", 2000, 60_000)
    voters = member_config(config(controller_quorum_bootstrap_servers=None, controller_quorum_voters="1@a:1,2@b:2"))
    assert voters.controllers == (Address("a", 1), Address("b", 2))


@pytest.mark.parametrize("limit", [0, 200 * 1024 * 1024, MAX_FRAME_BYTES])
def test_a_follower_asks_for_as_many_records_as_fit_into_a_frame(limit: int) -> None:
    found = fetcher_config(config(replica_fetch_response_max_bytes=str(limit)), 1).response_max_bytes
    assert found == limit or found < limit == MAX_FRAME_BYTES


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"node_id": None}, "needs a node.id"),
        ({"controller_quorum_bootstrap_servers": None}, "controller.quorum.bootstrap.servers"),
        ({"controller_quorum_bootstrap_servers": "a"}, "'a'"),
        ({"controller_quorum_bootstrap_servers": "a:0"}, "'a:0'"),
        ({"controller_listener_names": None}, "controller.listener.names"),
        ({"listener_security_protocol_map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:TLS"}, "CONTROLLER:TLS"),
        ({"inter_broker_listener_name": None}, "a name that listeners has: INSIDE, OUTSIDE"),
        ({"advertised_listeners": "INSIDE://inner:9092"}, "advertised.listeners"),
        ({"advertised_listeners": "INSIDE://inner:0,OUTSIDE://outer:443"}, "INSIDE://inner:0"),
    ],
)
def test_a_configuration_that_no_cluster_could_use_is_refused(texts: dict[str, str | None], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        member_config(config(None, **texts))


def formatted(directory: Path, *, cluster: str = CLUSTER, node: int = NODE, uuid: bytes | None = b"u" * 16) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    write_meta_properties(FILE_SYSTEM, str(directory), MetaProperties(cluster, node, uuid))


def test_formatted_directories_of_this_node_are_claimed(tmp_path: Path) -> None:
    formatted(tmp_path / "a", uuid=b"a" * 16)
    formatted(tmp_path / "b", uuid=b"b" * 16)
    found = claim_member_directories(FILE_SYSTEM, config(tmp_path))
    assert (found.claimed.cluster_id, found.ids, found.previous_epoch) == (CLUSTER, (b"a" * 16, b"b" * 16), -1)


@pytest.mark.parametrize(("epochs", "previous"), [((5, 5), 5), ((5, 6), -1), ((5, None), -1), ((None, None), -1)])
def test_a_clean_stop_counts_where_all_directories_agree(
    tmp_path: Path, epochs: tuple[int | None, int | None], previous: int
) -> None:
    """KIP-966: the controller keeps a broker in the ISR only if none of its logs can have lost records."""
    for name, epoch in zip("ab", epochs, strict=True):
        formatted(tmp_path / name, uuid=name.encode() * 16)
        if epoch is not None:
            write_clean_shutdown(FILE_SYSTEM, str(tmp_path / name), epoch)
    assert claim_member_directories(FILE_SYSTEM, config(tmp_path)).previous_epoch == previous


@pytest.mark.parametrize(
    ("registered", "epoch"),
    [((b"a" * 16, b"b" * 16), 5), ((b"a" * 16,), 5), ((), 5), ((b"a" * 16, b"c" * 16), -1), ((b"c" * 16,), -1)],
)
def test_a_stop_was_not_clean_where_a_directory_is_gone(
    tmp_path: Path, registered: tuple[bytes, ...], epoch: int
) -> None:
    """Its copies are lost as well, and the controller might elect this broker for them (ELR)."""
    for name in "ab":
        formatted(tmp_path / name, uuid=name.encode() * 16)
        write_clean_shutdown(FILE_SYSTEM, str(tmp_path / name), 5)
    found = claim_member_directories(FILE_SYSTEM, config(tmp_path))
    known = BrokerRegistration(NODE, 5, b"i" * 16, (), {}, None, True, False, registered)
    assert clean_stop_of(found, known) == epoch
    assert clean_stop_of(found, None) == 5


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"cluster": OTHER}, f"b/meta.properties has cluster.id={OTHER}, and .*a/meta.properties has {CLUSTER}"),
        ({"node": 8}, "b/meta.properties has node.id=8, and this is node 7"),
        ({"uuid": b"u" * 16}, "b/meta.properties has directory.id=.*, as .*a/meta.properties has"),
        ({"uuid": None}, "b/meta.properties has no directory.id"),
        (None, "b/meta.properties is missing: tidelog format"),
    ],
)
def test_other_directories_are_refused_by_file_and_value(
    tmp_path: Path, second: dict[str, object] | None, message: str
) -> None:
    formatted(tmp_path / "a")
    if second is not None:
        formatted(tmp_path / "b", **{"uuid": b"b" * 16, **second})  # type: ignore[arg-type]
    with pytest.raises(StartError, match=message):
        claim_member_directories(FILE_SYSTEM, config(tmp_path))


def manager(directory: Path, file_system: FileSystem = FILE_SYSTEM) -> LogManager:
    """Build the log manager of both directories, before it reads them."""
    paths = [str(directory / name) for name in "ab"]
    ids = {path: path[-1].encode() * 16 for path in paths}
    return LogManager(paths, file_system, ManualTime(), LogConfig({}), reserve_bytes=0, directory_ids=ids)


def image(*replicas: tuple[int, ...]) -> MetadataImage:
    """Build an image with the topic ``t`` whose partitions have these replicas."""
    partitions = tuple(PartitionState(one, one) for one in replicas)
    return MetadataImage(offset=1, topics={TOPIC_ID: TopicState("t", TOPIC_ID, partitions)}, topic_ids={"t": TOPIC_ID})


def test_logs_that_are_not_this_brokers_are_put_aside(tmp_path: Path) -> None:
    logs = {"t-0": TOPIC_ID, "t-1": TOPIC_ID, "t-2": OTHER_ID, "t-9": TOPIC_ID, "gone-0": OTHER_ID, "t-3": None}
    for name in "ab":
        (tmp_path / name).mkdir()
    for name, topic_id in logs.items():
        (tmp_path / "a" / name).mkdir()
        if topic_id is not None:
            write_partition_metadata(FILE_SYSTEM, str(tmp_path / "a" / name), topic_id)
    (tmp_path / "a" / "__cluster_metadata-0").mkdir()
    (tmp_path / "b" / "old-0.1-delete").mkdir()
    own = move_strays(manager(tmp_path), NODE, image((NODE,), (8,), (NODE,), (NODE,)))
    assert own == {str(tmp_path / "a" / "t-0"): TOPIC_ID}
    left = {path.name for path in (tmp_path / "a").iterdir()}
    kept = {name for name in left if not name.endswith("-stray")}
    assert kept == {"t-0", "__cluster_metadata-0"}
    assert len(left) == len(logs) + 1
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["old-0.1-delete"]


def test_producer_ids_come_in_blocks_and_never_twice() -> None:
    ids = ProducerIdBlocks(RemoteController(EMPTY_IMAGE, NODE))
    assert ids.wanted.is_set()
    with pytest.raises(CoordinatorLoadInProgressError):
        ids.take()
    ids.add_block(range(1000, 2000))
    taken = [ids.take() for _ in range(899)]
    assert not ids.wanted.is_set()
    taken.append(ids.take())
    assert ids.wanted.is_set(), "a tenth is left"
    ids.add_block(range(5000, 6000))
    taken += [ids.take() for _ in range(101)]
    assert taken == [*range(1000, 2000), 5000]


def test_a_member_refuses_to_commit_metadata_itself() -> None:
    with pytest.raises(NotControllerError):
        RemoteController(EMPTY_IMAGE, NODE).commit([])


@pytest.mark.parametrize(
    ("epoch", "offset", "is_enough"),
    [(5, 100, True), (5, 101, True), (6, 100, True), (5, 99, False), (4, 100, False), (4, 500, False), (9, 99, False)],
)
def test_a_quorum_with_fewer_records_is_detected(epoch: int, offset: int, is_enough: bool) -> None:
    quorum = EMPTY_IMAGE._replace(epoch=epoch, offset=offset)
    shortfall = MetadataPosition(5, 100).shortfall(quorum)
    assert (shortfall == "") is is_enough
    if not is_enough:
        assert "up to offset 100 of epoch 5" in shortfall
        assert f"offset {offset} of epoch {epoch}" in shortfall


def test_the_position_in_the_metadata_outlives_the_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = str(tmp_path)
    assert read_position(FILE_SYSTEM, directory) == NOWHERE
    assert NOWHERE.shortfall(EMPTY_IMAGE) == "", "a new broker joins any quorum"

    async def keep() -> None:
        task = asyncio.ensure_future(keep_position(directory, lambda: MetadataPosition(3, 7, 1234)))
        async with asyncio.timeout(60):
            while read_position(FILE_SYSTEM, directory) == NOWHERE:  # noqa: ASYNC110 - a file, written by a thread
                await asyncio.sleep(0)
        task.cancel()

    asyncio.run(keep())
    assert read_position(FILE_SYSTEM, directory) == MetadataPosition(3, 7, 1234)
    (tmp_path / "cluster-metadata-position").write_text("")
    assert read_position(FILE_SYSTEM, directory) == NOWHERE
    assert "is damaged" in caplog.text


def test_a_position_that_no_thread_writes_is_written_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A lack of threads must not end the broker, as it once did."""
    directory = str(tmp_path)

    async def keep() -> None:
        executor = ThreadPoolExecutor(1)
        executor.shutdown()
        asyncio.get_running_loop().set_default_executor(executor)
        task = asyncio.ensure_future(keep_position(directory, lambda: MetadataPosition(3, 7, 1234)))
        await asyncio.sleep(0)
        assert not task.done()
        task.cancel()

    asyncio.run(keep())
    assert "cannot write the position in the metadata, trying again: cannot schedule new futures" in caplog.text
