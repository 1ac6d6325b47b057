from __future__ import annotations

from pathlib import Path

import pytest

from broker.config import BrokerConfig
from broker.errors import StartError
from broker.startup import check_identity, claim_directory
from log.file_system import OsFileSystem

CLUSTER = "5L6g3nShT-eMCtK--X86sw"
OTHER = "MkU3OEVBNTcwNTJENDM2Qg"


def config(directory: Path, **texts: str) -> BrokerConfig:
    given = {key.replace("_", "."): value for key, value in texts.items()}
    return BrokerConfig({"log.dirs": str(directory), **given})


def test_a_directory_is_claimed_once(tmp_path: Path) -> None:
    file_system = OsFileSystem()
    directory = str(tmp_path / "data")
    lock = claim_directory(file_system, directory)
    with pytest.raises(StartError, match="in use by another broker"):
        claim_directory(file_system, directory)
    lock.close()
    claim_directory(file_system, directory).close()


def test_a_new_directory_gets_an_identity_that_stays(tmp_path: Path) -> None:
    first = check_identity(OsFileSystem(), config(tmp_path))
    assert check_identity(OsFileSystem(), config(tmp_path)) == first
    assert f"cluster.id={first}" in (tmp_path / "meta.properties").read_text()


def test_a_configured_cluster_id_is_used(tmp_path: Path) -> None:
    assert check_identity(OsFileSystem(), config(tmp_path, cluster_id=CLUSTER)) == CLUSTER


def test_another_clusters_directory_is_refused(tmp_path: Path) -> None:
    check_identity(OsFileSystem(), config(tmp_path, cluster_id=CLUSTER))
    with pytest.raises(StartError, match=f"belongs to cluster {CLUSTER}, not to {OTHER}"):
        check_identity(OsFileSystem(), config(tmp_path, cluster_id=OTHER))


def test_another_nodes_directory_is_refused(tmp_path: Path) -> None:
    check_identity(OsFileSystem(), config(tmp_path))
    with pytest.raises(StartError, match="belongs to node 1, not to node 2"):
        check_identity(OsFileSystem(), config(tmp_path, node_id="2"))
