"""The authorizer of a broker: which configuration builds it, its changes by metadata, and no import without it."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.broker.data_broker import DataBroker
from tests.unit.broker.security.authorization.test_decision import TOPIC, context_of
from tests.unit.broker.security.authorization.test_table import FREQUENT, World, codes_of, frequent_request
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.broker.metadata.image_records import VersionedRecord, acl_record
from tidelog.broker.metadata.metadata_image import AccessRule
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.authorization.acls import Acls
from tidelog.broker.security.authorization.decision import DEFAULT_DENY, Client, decide
from tidelog.protocol.acl import AclOperation, AclPermissionType, PatternType, ResourceType
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.metadata_records.records import AccessControlEntryRecord, RemoveAccessControlEntryRecord

AUTHORIZER = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin; User:other"}


def test_super_users_come_from_the_configuration(tmp_path: Path) -> None:
    data = DataBroker(tmp_path, AUTHORIZER)
    authorizer = data.broker.authorizer
    assert authorizer is not None
    allowed = [
        name
        for name in ("admin", "other", "x")
        if authorizer.authorize(context_of(name), AclOperation.READ, TOPIC, "a")
    ]
    assert allowed == ["admin", "other"]
    data.close()


def test_acls_hold_when_they_are_committed_and_after_a_restart(tmp_path: Path) -> None:
    data = DataBroker(tmp_path, AUTHORIZER)
    record = AccessControlEntryRecord(
        id=b"i" * 16, resource_type=TOPIC, resource_name="a", pattern_type=3, principal="User:x", host="*", operation=3,
        permission_type=3,
    )  # fmt: skip
    data.broker.controller.commit([VersionedRecord(record)])
    for _ in range(2):
        authorizer = data.broker.authorizer
        assert authorizer is not None
        assert authorizer.authorize(context_of(), AclOperation.READ, TOPIC, "a")
        assert not authorizer.authorize(context_of("y"), AclOperation.READ, TOPIC, "a")
        data.close()
        data = DataBroker(tmp_path, AUTHORIZER)
    data.close()


def test_many_acls_are_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.broker.security.authorization.authorizer.MANY_ACLS", 1)
    data = DataBroker(tmp_path, AUTHORIZER)
    for number in range(4):
        record = AccessControlEntryRecord(id=bytes([number]) * 16, resource_type=TOPIC, resource_name=str(number))
        with caplog.at_level(logging.WARNING):
            data.broker.controller.commit([VersionedRecord(record)])
    assert sum("more than 1 ACLs" in record.getMessage() for record in caplog.records) == 1
    data.close()


@pytest.mark.parametrize(
    "texts",
    [
        {"authorizer.class.name": "com.example.MyAuthorizer"},
        {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"},
        {"super.users": "admin"},
    ],
)
def test_another_class_or_a_name_without_a_type_refuses_the_start(tmp_path: Path, texts: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(texts))):
        BrokerConfig({"log.dirs": str(tmp_path), **texts})


HOSTS = {"x": "127.0.0.1", "y": "127.0.0.2"}
NEEDED = {"produce": AclOperation.WRITE, "fetch": AclOperation.READ, "metadata": AclOperation.DESCRIBE}
LOGGER = "kafka.authorizer.logger"


@pytest.fixture
def changing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChangingWorld]:
    monkeypatch.setattr("tidelog.broker.security.authorization.audit.LINES_PER_SECOND", 1_000_000)
    level = logging.getLogger(LOGGER).level
    world = ChangingWorld(tmp_path)
    yield world
    world.world.data.close()
    logging.getLogger(LOGGER).setLevel(level)


class ChangingWorld:
    """A broker whose ACLs and audit level change between requests, and the decisions that nothing is kept of."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory)
        for user, host in HOSTS.items():
            self.world.contexts[user] = RequestContext(client_host=host)
        self.level = "INFO"
        self._stored: list[bytes] = []

    def change(self, choose: random.Random) -> None:
        """Add a rule, remove one, or set another level."""
        kind = choose.random()
        if kind < 0.15:
            self.level = choose.choice(["INFO", "DEBUG"])
            self.world.set_level(self.level)
        elif kind < 0.55 and self._stored:
            acl_id = self._stored.pop(choose.randrange(len(self._stored)))
            self._commit(RemoveAccessControlEntryRecord(id=acl_id))
        else:
            self._stored.append(choose.randbytes(16))
            self._commit(acl_record(self._stored[-1], random_rule(choose)))

    def _commit(self, record: AccessControlEntryRecord | RemoveAccessControlEntryRecord) -> None:
        self.world.data.broker.controller.commit([VersionedRecord(record)])

    def may(self, user: str, operation: AclOperation) -> bool:
        """Decide by all rules in the metadata."""
        acls = Acls(self.world.data.broker.controller.image.acls.values())
        return decide(acls, Client(f"User:{user}", HOSTS[user]), operation, TOPIC, "orders", DEFAULT_DENY).is_allowed


def random_rule(choose: random.Random) -> AccessRule:
    name, pattern = choose.choice([("orders", 3), ("*", 3), ("ord", 4), ("other", 3)])
    return AccessRule(
        ResourceType.TOPIC,
        name,
        PatternType(pattern),
        choose.choice(["User:x", "User:y", "User:*"]),
        choose.choice(["*", *HOSTS.values()]),
        choose.choice([*NEEDED.values(), AclOperation.ALL]),
        choose.choice([AclPermissionType.ALLOW] * 3 + [AclPermissionType.DENY]),
    )


def test_cached_decisions_equal_decisions_without_a_cache(
    changing: ChangingWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Each request is answered by the ACLs in force and has the audit line of its verdict, kept or not."""
    choose, world = random.Random(20_261_122), changing.world
    world.set_level("INFO")
    seen, user, api = set(), "x", "produce"
    for _ in range(300):
        changing.change(choose)
        if choose.random() < 0.3:  # else the same is asked before and after the change
            user, api = choose.choice(list(HOSTS)), choose.choice(FREQUENT)
        name, version, fields = frequent_request(world, api)
        for _ in range(2):
            caplog.clear()
            is_refused = 29 in codes_of(world.ask(name, version, user, fields))
            lines = [record.levelname for record in caplog.records if record.name == LOGGER]
            assert is_refused != changing.may(user, NEEDED[name])
            assert lines == (["INFO"] if is_refused else ["DEBUG"] * (changing.level == "DEBUG"))
            seen.add((api, is_refused, changing.level))
    assert len(seen) == 2 * 2 * len(FREQUENT)
