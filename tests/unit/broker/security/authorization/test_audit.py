"""Audit lines: Kafka's texts, their levels, and the limit of their number."""

from __future__ import annotations

import logging

import pytest

from tests.unit.broker.security.authorization.test_decision import TOPIC, authorizer_of, context_of, rule
from tidelog.broker.security.authorization.audit import LINES_PER_SECOND, TRACE, AskedOperation, Audit, audit_line
from tidelog.broker.security.authorization.decision import DEFAULT_DENY, SUPER_USER, Client, Decision
from tidelog.protocol.acl import AclOperation

LOGGER = "kafka.authorizer.logger"
CLIENT = Client("User:bob", "10.0.0.7")


def test_the_line_is_kafkas() -> None:
    asked = AskedOperation(AclOperation.READ, TOPIC, "orders", 1)
    assert audit_line(CLIENT, asked, DEFAULT_DENY) == (
        "Principal = User:bob is Denied operation = READ from host = 10.0.0.7 on resource = Topic:LITERAL:orders "
        "for request = Fetch with resourceRefCount = 1 based on rule DefaultDeny"
    )
    assert audit_line(CLIENT, asked, Decision(True, rule("orders"))).endswith(
        "based on rule MatchingAcl(acl=StandardAcl(resourceType=TOPIC, resourceName=orders, patternType=LITERAL, "
        "principal=User:x, host=*, operation=READ, permissionType=ALLOW))"
    )
    assert audit_line(CLIENT, asked, SUPER_USER).endswith("based on rule SuperUser")


def test_a_name_cannot_end_the_line() -> None:
    asked = AskedOperation(AclOperation.READ, TOPIC, "a\nPrincipal = User:admin\x9b", 2)
    line = audit_line(CLIENT, asked, DEFAULT_DENY)
    assert line.isprintable()
    assert "a\\nPrincipal" in line


def test_every_decision_is_written_at_its_level(caplog: pytest.LogCaptureFixture) -> None:
    authorizer = authorizer_of(rule("a"))
    context = context_of()
    with caplog.at_level(TRACE, LOGGER):
        for _ in range(2):  # the second one is a kept verdict
            authorizer.authorize(context, AclOperation.READ, TOPIC, "a")
            authorizer.authorize(context, AclOperation.READ, TOPIC, "b", count=2)
            authorizer.authorize(context, AclOperation.READ, TOPIC, "c", is_filter=True)
            authorizer.operations(context, [AclOperation.READ], TOPIC, "d")
    levels = [(record.levelno, record.getMessage().count("Denied")) for record in caplog.records]
    assert levels == [(logging.DEBUG, 0), (logging.INFO, 1), (TRACE, 1), (TRACE, 1)] * 2
    assert authorizer.denied_total == 2  # what only filters is not a denial
    assert "resourceRefCount = 2" in caplog.records[1].getMessage()


def test_denials_are_bounded_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    audit = Audit(lambda: now)
    with caplog.at_level(logging.INFO, LOGGER):
        for number in range(LINES_PER_SECOND + 20):
            audit.note(logging.INFO, CLIENT, AskedOperation(AclOperation.READ, TOPIC, f"t{number}", 1), DEFAULT_DENY)
        assert len(caplog.records) == LINES_PER_SECOND
        now = 1000.0
        audit.note(logging.INFO, CLIENT, AskedOperation(AclOperation.READ, TOPIC, "last", 1), DEFAULT_DENY)
    assert [record.getMessage()[:40] for record in caplog.records[LINES_PER_SECOND:]] == [
        "20 denials within one second were not wr",
        "Principal = User:bob is Denied operation",
    ]
