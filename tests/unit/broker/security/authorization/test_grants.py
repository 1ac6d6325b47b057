"""Cached decisions about one client."""

from __future__ import annotations

from tidelog.broker.security.authorization.decision import DEFAULT_ALLOW, Client
from tidelog.broker.security.authorization.grants import Grants
from tidelog.broker.security.principal import Principal
from tidelog.protocol.acl import AclOperation


def test_a_generation_begins_without_the_decisions_of_the_one_before() -> None:
    first, second = object(), object()
    grants = Grants(Principal("User", "ann"), Client("User:ann", "127.0.0.1"), first, is_super=False)
    grants.verdicts[1] = {"t": DEFAULT_ALLOW}
    grants.by_operation[AclOperation.READ].add("t")
    grants.cached_count = 2
    assert grants.readable == {"t"}
    grants.begin(second)
    assert (grants.generation, grants.verdicts, grants.readable, grants.cached_count) == (second, {}, set(), 0)
    assert grants.by_operation[AclOperation.READ] is grants.readable
