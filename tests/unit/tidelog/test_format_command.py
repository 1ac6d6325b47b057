"""``tidelog format``: the files it writes, and refusals before it writes anything."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.startup import claim_directories
from tidelog.cli import main
from tidelog.commands.files.format import FirstRecords, format_directories
from tidelog.log.files.checkpoints import read_meta_properties
from tidelog.log.system.file_system import OsFileSystem
from tidelog.protocol.types import uuid_to_str

CLUSTER = "5L6g3nShT-eMCtK--X86sw"
OTHER = "Vb2vsuBdQ3CKnPMTrG2uGg"


def config_file(directory: Path, **texts: str) -> str:
    given = {
        "node.id": "4",
        "log.dirs": f"{directory / 'a'},{directory / 'b'}",
        **{key.replace("_", "."): value for key, value in texts.items()},
    }
    path = directory / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in given.items() if value))
    return str(path)


def format_node(path: str, cluster_id: str = CLUSTER, *options: str) -> int:
    return main(["format", "-t", cluster_id, "-c", path, *options])


def test_each_directory_gets_an_id_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_file(tmp_path)
    assert format_node(path) == 0
    assert capsys.readouterr().out == "".join(
        f"formatted {tmp_path / name} for node 4 of cluster {CLUSTER}\n" for name in "ab"
    )
    found = [read_meta_properties(OsFileSystem(), str(tmp_path / name)) for name in "ab"]
    assert [one and (one.cluster_id, one.node_id) for one in found] == [(CLUSTER, 4)] * 2
    ids = {one.directory_id for one in found if one is not None}
    assert len(ids) == 2
    assert None not in ids
    for name, one in zip("ab", found, strict=True):
        lines = (tmp_path / name / "meta.properties").read_text().splitlines()
        assert one is not None
        assert one.directory_id is not None
        assert {line for line in lines if "=" in line} == {
            "version=1", "node.id=4", f"cluster.id={CLUSTER}", f"directory.id={uuid_to_str(one.directory_id)}",
        }  # fmt: skip


class Noting(OsFileSystem):
    """A file system that notes which directories' names are safe."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self.synced.append(path)


def test_names_of_new_directories_outlive_a_loss_of_power(tmp_path: Path) -> None:
    """A broker had lost its whole log directory so: synced records were in it."""
    disk, deep = Noting(), tmp_path / "new" / "data"
    config = BrokerConfig.load(config_file(tmp_path, log_dirs=f"{deep},{tmp_path / 'b'}"))
    format_directories(disk, config, CLUSTER, FirstRecords(), ignore_formatted=False)
    assert {str(tmp_path), str(tmp_path / "new"), str(deep), str(tmp_path / "b")} <= set(disk.synced)


def test_new_directories_have_the_mode_of_a_brokers(tmp_path: Path) -> None:
    deep = tmp_path / "new" / "data"
    mask = os.umask(0o077)
    try:
        assert format_node(config_file(tmp_path, log_dirs=str(deep), log_dirs_mode="0750")) == 0
    finally:
        os.umask(mask)
    assert oct(deep.stat().st_mode & 0o777) == "0o750"


def test_json_names_the_formatted_directories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert format_node(config_file(tmp_path), CLUSTER, "--json") == 0
    formatted = [str(tmp_path / name) for name in "ab"]
    expected = {"cluster_id": CLUSTER, "node_id": 4, "formatted": formatted, "users": []}
    assert json.loads(capsys.readouterr().out) == expected


def test_a_lone_node_starts_on_formatted_directories(tmp_path: Path) -> None:
    path = config_file(tmp_path)
    assert format_node(path) == 0
    assert claim_directories(OsFileSystem(), BrokerConfig.load(path)).cluster_id == CLUSTER


def test_a_formatted_directory_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_file(tmp_path, log_dirs=str(tmp_path / "a"))
    assert format_node(path) == 0
    first = (tmp_path / "a" / "meta.properties").read_bytes()
    path = config_file(tmp_path)
    assert format_node(path) == 1
    assert f"{tmp_path / 'a' / 'meta.properties'} exists" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
    assert format_node(path, CLUSTER, "--ignore-formatted") == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert (tmp_path / "a" / "meta.properties").read_bytes() == first
    assert format_node(path, CLUSTER, "-g") == 0
    assert capsys.readouterr().out == "all log directories are formatted already\n"


@pytest.mark.parametrize(
    ("before", "cluster_id", "message"),
    [
        ({}, OTHER, f"meta.properties has cluster.id={CLUSTER}, not {OTHER}"),
        ({"node_id": "5"}, CLUSTER, "meta.properties has node.id=5, not 4"),
    ],
)
def test_another_nodes_directory_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: dict[str, str], cluster_id: str, message: str
) -> None:
    assert format_node(config_file(tmp_path, log_dirs=str(tmp_path / "b"), **before)) == 0
    assert format_node(config_file(tmp_path), cluster_id, "-g") == 1
    error = capsys.readouterr().err
    assert f"{tmp_path / 'b'}/{message}" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("cluster_id", ["", "short", "5L6g3nShT-eMCtK--X86sx", "5L6g3nShT-eMCtK--X86sw==", "ä" * 22])
def test_a_cluster_id_is_a_uuid(tmp_path: Path, capsys: pytest.CaptureFixture[str], cluster_id: str) -> None:
    assert format_node(config_file(tmp_path), cluster_id) == 2
    assert repr(cluster_id) in capsys.readouterr().err


def test_the_configuration_names_the_node_and_agrees_about_the_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert format_node(config_file(tmp_path, node_id="")) == 2
    assert "does not set node.id" in capsys.readouterr().err
    assert format_node(config_file(tmp_path, cluster_id=OTHER)) == 2
    assert f"configured as {OTHER}, and {CLUSTER} is given" in capsys.readouterr().err
    assert format_node(str(tmp_path / "none.properties")) == 2
    assert not (tmp_path / "a").exists()
