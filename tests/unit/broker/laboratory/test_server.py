from __future__ import annotations

import shutil
import socket
from errno import ENOSPC
from pathlib import Path

import pytest

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.laboratory.server import LaboratoryServer, copy_tree, remove_tree
from tidelog.protocol.config_def import ConfigError


def test_a_member_of_a_cluster_has_no_laboratory(tmp_path: Path) -> None:
    texts = {
        "log.dirs": str(tmp_path), "node.id": "1", "process.roles": "broker",
        "controller.quorum.bootstrap.servers": "127.0.0.1:1", "controller.listener.names": "CONTROLLER",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="--laboratory: a member of a cluster"):
        LaboratoryServer(BrokerConfig(texts))


@pytest.mark.parametrize("command", ["snapshot", "restore"])
async def test_a_copy_that_fails_leaves_the_broker_running_on_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """In the middle of the copy: some files are there, others not."""
    config = BrokerConfig(
        {"log.dirs": str(tmp_path / "data"), "listeners": "PLAINTEXT://127.0.0.1:0", "admin.listener": ""}
    )
    laboratory = LaboratoryServer(config)
    await laboratory.start()
    try:
        assert await laboratory.snapshot() == 0
        copied = logs_below(tmp_path / "data")
        assert copied
        calls, copyfile = 0, shutil.copyfile

        def copy(source: str, target: str) -> str:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise OSError(ENOSPC, "no room")
            return copyfile(source, target)

        monkeypatch.setattr(shutil, "copyfile", copy)
        with pytest.raises(OSError, match="no room"):
            await (laboratory.snapshot() if command == "snapshot" else laboratory.restore(0))
        monkeypatch.undo()
        with socket.create_connection((laboratory.endpoints[0].host, laboratory.endpoints[0].port)):
            assert logs_below(tmp_path / "data") == copied
        await laboratory.restore(0)
        assert await laboratory.snapshot() == 1
        assert logs_below(tmp_path / "data") == copied
    finally:
        await laboratory.stop()


def logs_below(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*.log")}


def test_a_copy_has_all_files_but_the_lock(tmp_path: Path) -> None:
    log = tmp_path / "data" / "orders-0"
    log.mkdir(parents=True)
    (log / "0.log").write_bytes(b"records")
    (tmp_path / "data" / ".lock").touch()
    (tmp_path / "data" / "meta.properties").write_text("version=1")
    copy_tree(str(tmp_path / "data"), str(tmp_path / "copy"))
    found = sorted(path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*"))
    assert found == ["meta.properties", "orders-0", "orders-0/0.log"]
    assert (tmp_path / "copy" / "orders-0" / "0.log").read_bytes() == b"records"
    remove_tree(str(tmp_path / "data"))
    assert list((tmp_path / "data").iterdir()) == []
