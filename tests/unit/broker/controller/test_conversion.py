"""Conversion of the metadata of former versions into Kafka's metadata log: once, and a kill leaves the old or the new
form completely."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from tests.support.faulty_file_system import FaultyFileSystem, Killed
from tests.unit.broker.controller.test_embedded import NODE, location_at
from tidelog.broker.controller.conversion import STORE_FILE, convert_store, image_of_directory
from tidelog.broker.metadata.log_reader import read_metadata_log
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.types import uuid_to_str

ORDERS, GONE = bytes(range(1, 17)), bytes(range(2, 18))
SCRAM = {"iterations": 4096, "salt": "01", "stored_key": "02", "server_key": "03"}
STORED = {
    "/topics/orders": json.dumps(
        {"id": uuid_to_str(ORDERS), "partitions": 3, "configs": {"retention.ms": "5"}, "leader_epoch": 7}
    ),
    f"/deleted-topics/{uuid_to_str(GONE)}": "gone",
    "/configs/broker/": json.dumps({"log.retention.ms": "77"}),
    "/configs/client-metrics/all": json.dumps({"metrics": "*"}),
    "/configs/group/shares": json.dumps({"share.auto.offset.reset": "earliest"}),
    '/quotas/[["user",null]]': json.dumps({"producer_byte_rate": 1000.0}),
    "/features/metadata.version": "21",
    "/scram/SCRAM_SHA_512/ann/of/the/north": json.dumps(SCRAM),
    "/producer_ids/next": "3000",
}


def write_store(directory: Path) -> None:
    """Write a store as the former version did: one row a key, deleted ones without a value."""
    with contextlib.closing(sqlite3.connect(directory / STORE_FILE)) as connection:
        connection.execute("CREATE TABLE kv (key TEXT PRIMARY KEY, value BLOB, mod_revision INTEGER, lease INTEGER)")
        rows = [(key, value.encode(), 1, 0) for key, value in STORED.items()]
        connection.executemany("INSERT INTO kv VALUES (?, ?, ?, ?)", [*rows, ("/topics/deleted", None, 2, 0)])
        connection.commit()


def check(image: MetadataImage) -> None:
    topic = image.topic_by_name("orders")
    assert topic is not None
    assert (topic.topic_id, [state.leader_epoch for state in topic.partitions]) == (ORDERS, [7, 7, 7])
    assert list(image.topic_ids) == ["orders"]
    assert image.configs == {
        (2, "orders"): {"retention.ms": "5"},
        (4, ""): {"log.retention.ms": "77"},
        (16, "all"): {"metrics": "*"},
        (32, "shares"): {"share.auto.offset.reset": "earliest"},
    }
    assert image.quotas == {(("user", None),): {"producer_byte_rate": 1000.0}}
    assert image.scram == {("ann/of/the/north", 2): (b"\x01", b"\x02", b"\x03", 4096)}
    assert image.producer_ids == 3000
    assert image.features["metadata.version"] == 21
    assert image.features["group.version"] == 1


def test_all_that_was_stored_is_in_the_log_and_the_old_file_is_kept(tmp_path: Path) -> None:
    write_store(tmp_path)
    place = location_at(tmp_path)
    check(image_of_directory(OsFileSystem(), str(tmp_path), NODE))
    convert_store(place, NODE, ManualTime())
    loaded = read_metadata_log(OsFileSystem(), place.path)
    check(loaded.image)
    check(image_of_directory(OsFileSystem(), str(tmp_path), NODE))
    assert loaded.deletions == {GONE: "gone"}
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"__cluster_metadata-0", "metadata.sqlite.converted"}


def test_a_file_that_is_no_store_is_reported(tmp_path: Path) -> None:
    (tmp_path / STORE_FILE).write_bytes(b"no database at all, but long enough to be looked at" * 20)
    with pytest.raises(KafkaStorageError, match="cannot read metadata store"):
        convert_store(location_at(tmp_path), NODE, ManualTime())
    assert (tmp_path / STORE_FILE).exists()


@pytest.mark.parametrize("power_loss", [False, True], ids=["kill", "power loss"])
def test_killed_at_every_step_it_is_never_half(tmp_path: Path, power_loss: bool) -> None:
    (tmp_path / "count").mkdir()
    write_store(tmp_path / "count")
    disk = FaultyFileSystem(str(tmp_path / "count"))
    convert_store(location_at(tmp_path / "count", disk), NODE, ManualTime())
    assert len(disk.calls) > 20
    for number in range(len(disk.calls)):
        directory = tmp_path / str(number)
        directory.mkdir()
        write_store(directory)
        killed = FaultyFileSystem(str(directory))
        killed.kill_at = number
        with contextlib.suppress(Killed):
            convert_store(location_at(directory, killed), NODE, ManualTime())
        if power_loss:
            killed.crash()
        convert_store(location_at(directory), NODE, ManualTime())
        check(read_metadata_log(OsFileSystem(), location_at(directory).path).image)
        assert not (directory / STORE_FILE).exists()
