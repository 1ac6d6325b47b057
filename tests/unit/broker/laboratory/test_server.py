from __future__ import annotations

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
