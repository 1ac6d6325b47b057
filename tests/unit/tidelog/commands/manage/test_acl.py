"""ACLs that ``tidelog acl`` makes of its options."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tidelog.client.admin import acls
from tidelog.client.cluster import Cluster
from tidelog.commands.manage import acl
from tidelog.protocol.acl import AclOperation


class NoCluster:
    """A cluster that nothing is asked of."""

    def __enter__(self) -> NoCluster:
        return self

    def __exit__(self, *error: object) -> None:
        """Close nothing."""


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[acls.Acl]:
    """ACLs that commands have created."""
    found: list[acls.Acl] = []
    monkeypatch.setattr(Cluster, "open", lambda settings: NoCluster())
    monkeypatch.setattr(acls, "create_acls", lambda cluster, asked: found.extend(asked))
    return found


def create(*words: str) -> Result:
    return CliRunner().invoke(acl.command, ["create", "--topic", "orders", "--operation", "read", "--json", *words])


def rules(found: list[Any]) -> list[tuple[str, str, str]]:
    return sorted((one.permission, one.principal, one.host) for one in found)


def test_a_host_belongs_to_the_principals_of_its_own_kind(created: list[acls.Acl]) -> None:
    allowed = ["--allow-principal", "User:a", "--allow-host", "10.0.0.1"]
    denied = ["--deny-principal", "User:b", "--deny-host", "10.0.0.2"]
    done = create(*allowed, *denied)
    assert done.exit_code == 0, done.output
    assert rules(created) == [("allow", "User:a", "10.0.0.1"), ("deny", "User:b", "10.0.0.2")]
    assert len(json.loads(done.stdout)) == 2


def test_a_kind_without_hosts_is_for_all_hosts(created: list[acls.Acl]) -> None:
    create("--allow-principal", "User:a", "--allow-host", "10.0.0.1", "--deny-principal", "User:b")
    assert rules(created) == [("allow", "User:a", "10.0.0.1"), ("deny", "User:b", "*")]


def test_a_host_without_a_kind_is_of_both(created: list[acls.Acl]) -> None:
    hosts = ["--host", "10.0.0.1", "--allow-host", "10.0.0.2"]
    create("--allow-principal", "User:a", "--deny-principal", "User:b", *hosts)
    assert rules(created) == [
        ("allow", "User:a", "10.0.0.1"), ("allow", "User:a", "10.0.0.2"), ("deny", "User:b", "10.0.0.1"),
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "other"), [("allow", "deny"), ("deny", "allow")])
def test_a_host_without_a_principal_of_its_kind_is_refused(created: list[acls.Acl], kind: str, other: str) -> None:
    done = create(f"--{other}-principal", "User:a", f"--{kind}-host", "10.0.0.1")
    assert (done.exit_code, created) == (2, [])
    assert f"--{kind}-host: expected it with --{kind}-principal" in done.output


def test_operations_are_those_of_the_protocol() -> None:
    known = {one.name.lower().replace("_", "-"): one.value for one in AclOperation if one > AclOperation.ANY}
    assert known == acls.OPERATIONS
    assert tuple(known) == acl.OPERATIONS
