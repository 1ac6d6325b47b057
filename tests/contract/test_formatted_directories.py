"""Copied directories of Kafka nodes, which tests use, compared with one that StorageTool formatted."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rivals.apache_kafka import ApacheKafka as FormattedByTool
from tests.support.apache_kafka import BOOTSTRAP_CHECKPOINT
from tests.support.kraft_node import KraftNode
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import RecordBatch
from tidelog.protocol.types import uuid_from_str

pytestmark = pytest.mark.java
UUID_BYTES = 16


def facts(directory: Path) -> dict[str, str]:
    """Read the lines of a directory's meta.properties."""
    lines = (directory / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def feature_levels(directory: Path) -> list[bytes | None]:
    """Return the values of the records that a new cluster begins with."""
    batches = iter_batches((directory / BOOTSTRAP_CHECKPOINT).read_bytes())
    return [
        record.value for batch in batches if isinstance(batch, RecordBatch) and not batch.is_control for record in batch
    ]


def test_a_copy_equals_the_directory_of_the_tool_except_for_its_ids(tmp_path: Path) -> None:
    """A broker without a controller's role: the directory that is copied was a node's with both roles."""
    copied = KraftNode(tmp_path, 7, {1: 1}, is_broker=True)
    copied.format()
    by_tool = KraftNode(tmp_path / "tool", 7, {1: 1}, is_broker=True)
    by_tool.write_properties()
    FormattedByTool.format_data_directory(by_tool)
    assert sorted(path.name for path in copied.data_directory.iterdir()) == sorted(
        path.name for path in by_tool.data_directory.iterdir()
    )
    found, wanted = facts(copied.data_directory), facts(by_tool.data_directory)
    assert found.pop("directory.id") != wanted.pop("directory.id")
    assert found == wanted
    assert feature_levels(copied.data_directory) == feature_levels(by_tool.data_directory)
    assert len(feature_levels(copied.data_directory)) > 3


def test_each_directory_has_an_id_of_its_own(tmp_path: Path) -> None:
    nodes = [KraftNode(tmp_path, number, {1: 1}, is_broker=True) for number in (2, 3)]
    for node in nodes:
        node.format()
    first, second = (facts(node.data_directory) for node in nodes)
    assert (first["node.id"], second["node.id"]) == ("2", "3")
    assert first["directory.id"] != second["directory.id"]
    assert len(uuid_from_str(first["directory.id"])) == UUID_BYTES
