"""CreateAcls, DescribeAcls and DeleteAcls: Kafka's error texts, one batch for each request, filters compared with a
naive model, audit lines."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.broker.admin_broker import AdminBroker, context_of
from tests.unit.broker.handlers.drive import drive, handler_of
from tests.unit.broker.security.authorization import test_decision
from tests.unit.broker.stepping import response_of
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.broker.controller.clients import acls
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.metadata.metadata_image import AccessRule
from tidelog.protocol.acl import AclOperation, AclPermissionType, PatternType, ResourceType
from tidelog.protocol.errors import InvalidRequestError, KafkaStorageError, MessageTooLargeError, PolicyViolationError
from tidelog.protocol.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from tidelog.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from tidelog.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

ANY_FILTER = DeleteAclsFilter(
    resource_type_filter=ResourceType.ANY, resource_name_filter=None, pattern_type_filter=PatternType.ANY,
    principal_filter=None, host_filter=None, operation=AclOperation.ANY, permission_type=AclPermissionType.ANY,
)  # fmt: skip


@pytest.fixture
def admin(tmp_path: Path) -> AdminBroker:
    return AdminBroker(tmp_path, {"authorizer.class.name": STANDARD_AUTHORIZER})


def creation(name: str = "orders", **more: object) -> AclCreation:
    values: dict[str, Any] = {
        "resource_type": ResourceType.TOPIC, "resource_name": name, "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:ann", "host": "*", "operation": AclOperation.READ,
        "permission_type": AclPermissionType.ALLOW,
    }  # fmt: skip
    return AclCreation(**{**values, **more})


def create(admin: AdminBroker, *creations: AclCreation, version: int = 3) -> list[AclCreationResult]:
    return drive(admin.broker, CreateAclsRequest(creations=list(creations)), CreateAclsResponse, version).results


def create_rules(admin: AdminBroker, rules: Iterable[AccessRule]) -> None:
    fields = ("resource_type", "resource_name", "resource_pattern_type", "principal", "host", "operation")
    named: list[dict[str, Any]] = [dict(zip((*fields, "permission_type"), rule, strict=True)) for rule in rules]
    made = [AclCreation(**values) for values in named]
    assert {result.error_code for result in create(admin, *made)} <= {0}


def delete(admin: AdminBroker, *filters: DeleteAclsFilter, version: int = 3) -> list[DeleteAclsFilterResult]:
    return drive(admin.broker, DeleteAclsRequest(filters=list(filters)), DeleteAclsResponse, version).filter_results


def describe(admin: AdminBroker, wanted: DeleteAclsFilter = ANY_FILTER, version: int = 3) -> set[AccessRule]:
    values = {field.name: getattr(wanted, field.name) for field in DeleteAclsFilter.FIELDS}
    response = drive(admin.broker, DescribeAclsRequest(**values), DescribeAclsResponse, version)
    assert response.error_code == 0
    rules = [
        AccessRule(
            one.resource_type, one.resource_name, one.pattern_type, acl.principal, acl.host, acl.operation,
            acl.permission_type,
        )
        for one in response.resources
        for acl in one.acls
    ]  # fmt: skip
    assert len(rules) == len(set(rules))
    return set(rules)


def rule_of(made: AclCreation) -> AccessRule:
    return AccessRule(
        made.resource_type, made.resource_name, made.resource_pattern_type, made.principal, made.host, made.operation,
        made.permission_type,
    )  # fmt: skip


@pytest.mark.parametrize("version", range(4))
def test_acls_are_created_described_deleted_and_kept(admin: AdminBroker, version: int) -> None:
    made = [creation("orders"), creation("bills", operation=AclOperation.ALL)]
    assert [result.error_code for result in create(admin, *made, version=version)] == [0, 0]
    again = admin.reopen()
    assert describe(again, version=version) == set(map(rule_of, made))
    (removed,) = delete(again, ANY_FILTER, version=version)
    assert {acl.resource_name for acl in removed.matching_acls} == {"orders", "bills"}
    assert describe(again.reopen()) == set()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"resource_type": 1}, "Invalid resourceType ANY"),
        ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        ({"resource_pattern_type": PatternType.MATCH}, "Invalid patternType MATCH"),
        ({"resource_pattern_type": PatternType.ANY}, "Invalid patternType ANY"),
        ({"operation": AclOperation.ANY}, "Invalid operation ANY"),
        ({"operation": 77}, "Invalid operation UNKNOWN"),
        ({"permission_type": AclPermissionType.ANY}, "Invalid permissionType ANY"),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_type": ResourceType.CLUSTER}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"principal": "ann"}, "Could not parse principal from `ann`"),
        ({"host": "h" * 5000}, "more than 4096 characters"),
    ],
)
def test_a_wrong_acl_is_refused_in_kafkas_words_and_the_others_are_created(
    admin: AdminBroker, wrong: dict[str, object], text: str
) -> None:
    refused, taken = create(admin, creation(**wrong), creation("other"))  # type: ignore[arg-type]
    assert refused.error_code == InvalidRequestError.code
    assert text in (refused.error_message or "")
    assert taken.error_code == 0
    assert describe(admin) == {rule_of(creation("other"))}


@pytest.mark.parametrize("field", ["resource_type", "resource_pattern_type", "operation", "permission_type"])
def test_a_zero_for_unknown_closes_the_connection(admin: AdminBroker, field: str) -> None:
    with pytest.raises(CloseConnectionError):
        create(admin, creation(**{field: 0}))  # type: ignore[arg-type]
    name = {"resource_type": "resource_type_filter", "resource_pattern_type": "pattern_type_filter"}.get(field, field)
    values = {one.name: getattr(ANY_FILTER, one.name) for one in DeleteAclsFilter.FIELDS}
    with pytest.raises(CloseConnectionError):
        delete(admin, DeleteAclsFilter(**{**values, name: 0}))


def test_a_filter_with_an_unknown_number_is_refused_and_the_others_are_used(admin: AdminBroker) -> None:
    create(admin, creation())
    values = {one.name: getattr(ANY_FILTER, one.name) for one in DeleteAclsFilter.FIELDS}
    pattern, entry, fine = delete(
        admin,
        DeleteAclsFilter(**{**values, "resource_type_filter": 99}),
        DeleteAclsFilter(**{**values, "operation": 99}),
        ANY_FILTER,
    )
    assert (pattern.error_code, pattern.error_message) == (InvalidRequestError.code, "Unknown patternFilter.")
    assert (entry.error_code, entry.error_message) == (InvalidRequestError.code, "Unknown entryFilter.")
    assert len(fine.matching_acls) == 1


def test_creating_existing_acls_writes_no_record(admin: AdminBroker) -> None:
    create(admin, creation(), creation())
    end = admin.controller.end_offset
    assert [result.error_code for result in create(admin, creation(), creation())] == [0, 0]
    assert admin.controller.end_offset == end


def test_a_request_is_one_batch_and_bounded(admin: AdminBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "MAX_CHANGED", 3)
    monkeypatch.setattr(acls, "MAX_ACLS", 4)
    many = [creation(str(number)) for number in range(4)]
    assert {result.error_code for result in create(admin, *many)} == {PolicyViolationError.code}
    assert describe(admin) == set()
    assert {result.error_code for result in create(admin, *many[:3])} == {0}
    assert {result.error_code for result in create(admin, creation("a"), creation("b"))} == {PolicyViolationError.code}
    assert {result.error_code for result in create(admin, many[3])} == {0}
    (refused,) = delete(admin, ANY_FILTER)
    assert refused.error_code == PolicyViolationError.code
    assert len(describe(admin)) == 4


def test_the_response_waits_for_the_disk_and_is_an_error_if_that_fails(admin: AdminBroker) -> None:
    waiting: list[Deferred[None]] = []

    def in_thread(work: object) -> Deferred[None]:
        waiting.append(Deferred())
        return waiting[-1]

    admin.in_thread = in_thread
    request = CreateAclsRequest(creations=[creation()])
    answer = response_of(handler_of(request).handle(admin.broker, context_of(3), request))
    assert isinstance(answer, Deferred)
    assert not answer.done
    assert len(admin.controller.image.acls) == 1
    waiting[0].fail(KafkaStorageError("the disk is gone"))
    with pytest.raises(KafkaStorageError):
        answer.result()


def test_an_acl_of_a_virtual_topic_causes_a_warning(admin: AdminBroker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        create(admin, creation("orders?key=1"), creation("orders...ordinary"))
    assert [record.getMessage() for record in caplog.records if "no effect" in record.getMessage()] == [
        "an ACL of the virtual topic 'orders?key=1' has no effect: those of its topic apply"
    ]


def naive_matches(wanted: DeleteAclsFilter, rule: AccessRule) -> bool:
    """Return whether a rule matches, by the conditions of ResourcePatternFilter and AccessControlEntryFilter one after
    the other."""
    if wanted.resource_type_filter not in (ResourceType.ANY, rule.resource_type):
        return False
    if wanted.operation not in (AclOperation.ANY, rule.operation):
        return False
    if wanted.permission_type not in (AclPermissionType.ANY, rule.permission):
        return False
    if wanted.principal_filter not in (None, rule.principal) or wanted.host_filter not in (None, rule.host):
        return False
    if wanted.pattern_type_filter in (PatternType.LITERAL, PatternType.PREFIXED) and (
        wanted.pattern_type_filter != rule.pattern_type
    ):
        return False
    name = wanted.resource_name_filter
    if name is None or name == rule.resource_name:
        return True
    if wanted.pattern_type_filter != PatternType.MATCH:
        return False
    if rule.pattern_type == PatternType.PREFIXED:
        return name.startswith(rule.resource_name)
    return rule.resource_name == "*"


filters = st.builds(
    DeleteAclsFilter,
    resource_type_filter=st.sampled_from([ResourceType.ANY, ResourceType.TOPIC, ResourceType.GROUP]),
    resource_name_filter=st.none() | st.sampled_from([*test_decision.NAMES, "*"]),
    pattern_type_filter=st.sampled_from([1, 2, 3, 4]),
    principal_filter=st.none() | st.sampled_from(["User:x", "User:y"]),
    host_filter=st.none() | st.sampled_from(["*", "127.0.0.1"]),
    operation=st.sampled_from([AclOperation.ANY, AclOperation.ALL, AclOperation.READ, AclOperation.WRITE]),
    permission_type=st.sampled_from([1, 2, 3]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.lists(test_decision.rules, max_size=12), st.lists(filters, min_size=1, max_size=4))
def test_filters_match_the_acls_of_a_naive_model(
    admin: AdminBroker, stored: list[AccessRule], wanted: list[DeleteAclsFilter]
) -> None:
    delete(admin, ANY_FILTER)
    create_rules(admin, stored)
    expected = [{rule for rule in stored if naive_matches(one, rule)} for one in wanted]
    assert [describe(admin, one) for one in wanted] == expected
    results = delete(admin, *wanted)
    found = [
        {
            AccessRule(
                acl.resource_type, acl.resource_name, acl.pattern_type, acl.principal, acl.host, acl.operation,
                acl.permission_type,
            )
            for acl in result.matching_acls
        }
        for result in results
    ]  # fmt: skip
    assert found == expected
    assert describe(admin) == set(stored) - set().union(*expected)


def test_each_created_or_deleted_acl_has_an_audit_line(admin: AdminBroker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tidelog.audit"):
        create(admin, creation(), creation(), creation("a\nb"), creation(""))
        create(admin, creation())  # it exists: no line
        delete(admin, ANY_FILTER, ANY_FILTER)
        delete(admin, ANY_FILTER)  # there is none left: no line
    lines = [json.loads(line) for line in caplog.messages]
    assert sorted((line["event"], line["acl"]["name"]) for line in lines) == [
        ("acl created", "a\nb"), ("acl created", "orders"), ("acl deleted", "a\nb"), ("acl deleted", "orders")
    ]  # fmt: skip
    assert {line["user"] for line in lines} == {"User:ANONYMOUS"}
    assert lines[0]["acl"] | {"name": ""} == {
        "resource": "TOPIC", "name": "", "pattern": "LITERAL", "principal": "User:ann", "host": "*",
        "operation": "READ", "permission": "ALLOW",
    }  # fmt: skip


def test_rules_that_make_too_large_a_batch_are_refused_together(admin: AdminBroker) -> None:
    """The records are longer than the request, which may have 8 MiB as a batch of the metadata log."""
    named = [creation(f"orders-{number}", principal=f"User:{number}" + "x" * 820) for number in range(9_900)]
    before = admin.broker.controller.image
    results = create(admin, *named)
    assert {result.error_code for result in results} == {MessageTooLargeError.code}
    assert "exceeds the maximum configured value of 8388608" in str(results[0].error_message)
    assert len(results) == len(named)
    assert admin.broker.controller.image is before
    assert create(admin, creation())[0].error_code == 0
