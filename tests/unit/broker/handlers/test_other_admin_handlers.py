from __future__ import annotations

import asyncio
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.admin_broker import AdminBroker, context_of
from tests.unit.broker.handlers.drive import drive, handler_of
from tests.unit.broker.stepping import response_of
from tidelog.broker.config.changes import Change, Operation
from tidelog.broker.config.resource_type import ResourceType
from tidelog.broker.controller.clients.client_quotas import ClientQuotas, QuotaChange, entity_of
from tidelog.broker.controller.clients.scram_credentials import ScramCredentials, ScramMechanism
from tidelog.broker.controller.features import (
    FeatureRange,
    first_level,
    level_record,
    show_features,
    supported_features,
)
from tidelog.broker.controller.metadata_controller import ForwardedVersions
from tidelog.broker.handlers import describe_log_dirs, describe_user_scram_credentials
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE
from tidelog.broker.requests.registry import REGISTRY
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    ClusterAuthorizationFailedError,
    DelegationTokenRequestNotAllowedError,
    DuplicateResourceError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    KafkaStorageError,
    ResourceNotFoundError,
    SecurityDisabledError,
    TelemetryTooLargeError,
    UnacceptableCredentialError,
    UnknownServerError,
    UnknownSubscriptionIdError,
    UnsupportedCompressionTypeError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)
from tidelog.protocol.messages import alter_client_quotas as alter_quotas
from tidelog.protocol.messages import describe_client_quotas as describe_quotas
from tidelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from tidelog.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from tidelog.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from tidelog.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from tidelog.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from tidelog.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tidelog.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from tidelog.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from tidelog.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from tidelog.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tidelog.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from tidelog.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from tidelog.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse
from tidelog.protocol.schema.fields import Message
from tidelog.protocol.types import ZERO_UUID


@pytest.fixture
def admin(tmp_path: Path) -> AdminBroker:
    return AdminBroker(tmp_path)


# Security that is not configured


@pytest.mark.parametrize("version", range(4))
def test_without_an_authorizer_there_are_no_acls(admin: AdminBroker, version: int) -> None:
    code = SecurityDisabledError.code
    assert drive(admin.broker, DescribeAclsRequest(), DescribeAclsResponse, version).error_code == code
    creations = [AclCreation(principal="User:a", host="*")] * 2
    created = drive(admin.broker, CreateAclsRequest(creations=creations), CreateAclsResponse, version)
    assert [result.error_code for result in created.results] == [code, code]
    deleted = drive(admin.broker, DeleteAclsRequest(filters=[DeleteAclsFilter()]), DeleteAclsResponse, version)
    assert [result.error_code for result in deleted.filter_results] == [code]


def test_without_authentication_there_are_no_tokens(admin: AdminBroker) -> None:
    code = DelegationTokenRequestNotAllowedError.code
    for version in range(4):
        made = drive(admin.broker, CreateDelegationTokenRequest(), CreateDelegationTokenResponse, version)
        described = drive(admin.broker, DescribeDelegationTokenRequest(), DescribeDelegationTokenResponse, version)
        assert (made.error_code, described.error_code) == (code, code)
    for version in range(3):
        kept = drive(admin.broker, RenewDelegationTokenRequest(), RenewDelegationTokenResponse, version)
        gone = drive(admin.broker, ExpireDelegationTokenRequest(), ExpireDelegationTokenResponse, version)
        assert (kept.error_code, gone.error_code) == (code, code)


# SCRAM


def upsert(user: str, mechanism: int = 1, iterations: int = 4096) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=user, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=b"p" * 32
    )


def alter_scram(
    admin: AdminBroker, deletions: list[ScramCredentialDeletion], upsertions: list[ScramCredentialUpsertion]
) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
    response = drive(admin.broker, request, AlterUserScramCredentialsResponse)
    return {result.user: result.error_code for result in response.results}


def test_scram_credentials_are_set_described_and_kept(admin: AdminBroker) -> None:
    assert alter_scram(admin, [], [upsert("ann"), upsert("ann", 2, 8192), upsert("bob")]) == {"ann": 0, "bob": 0}
    again = admin.reopen()
    request = DescribeUserScramCredentialsRequest(users=None)
    response = drive(again.broker, request, DescribeUserScramCredentialsResponse)
    found = {
        result.user: [(info.mechanism, info.iterations) for info in result.credential_infos]
        for result in response.results
    }
    assert found == {"ann": [(1, 4096), (2, 8192)], "bob": [(1, 4096)]}
    assert alter_scram(again, [ScramCredentialDeletion(name="ann", mechanism=1)], []) == {"ann": 0}
    assert ScramCredentials(again.controller).get("ann", ScramMechanism.SCRAM_SHA_256) is None
    assert ScramCredentials(again.controller).get("ann", ScramMechanism.SCRAM_SHA_512) is not None


def test_scram_keys_are_those_of_rfc_7677(admin: AdminBroker) -> None:
    import base64
    import hashlib

    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    credentials = ScramCredentials(admin.controller)
    credentials.put("user", ScramMechanism.SCRAM_SHA_256, 4096, salt, salted)
    credential = credentials.get("user", ScramMechanism.SCRAM_SHA_256)
    assert credential is not None
    assert base64.b64encode(credential.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(credential.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="


def test_bad_scram_changes_are_refused_one_by_one(admin: AdminBroker) -> None:
    deletions = [ScramCredentialDeletion(name="nobody", mechanism=1)]
    upsertions = [upsert("few", iterations=1), upsert("many", iterations=99999), upsert(""), upsert("odd", 9)]
    assert alter_scram(admin, deletions, [*upsertions, upsert("twice"), upsert("twice")]) == {
        "nobody": ResourceNotFoundError.code,
        "few": UnacceptableCredentialError.code,
        "many": UnacceptableCredentialError.code,
        "": UnacceptableCredentialError.code,
        "odd": UnsupportedSaslMechanismError.code,
        "twice": DuplicateResourceError.code,
    }


def test_each_credential_that_changed_is_a_line_of_the_audit_log(
    admin: AdminBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tidelog.audit"):
        alter_scram(admin, [], [upsert("ann"), upsert("ann", 9), upsert("bob", iterations=1)])
        alter_scram(admin, [ScramCredentialDeletion(name="ann", mechanism=1)], [])
    lines = [json.loads(line) for line in caplog.messages]
    assert [(line["event"], line["of"], line["mechanism"]) for line in lines] == [
        ("credential set", "ann", "SCRAM-SHA-256"), ("credential deleted", "ann", "SCRAM-SHA-256")
    ]  # fmt: skip
    assert "pppp" not in caplog.text


def test_a_refusal_has_a_result_without_a_name_for_each_user_as_kafkas_has(admin: AdminBroker) -> None:
    error = ClusterAuthorizationFailedError()
    for users, count in (([UserName(name="ann"), UserName(name="bob")], 2), (None, 0)):
        request = DescribeUserScramCredentialsRequest(users=users)
        response = describe_user_scram_credentials.error_response(request, error)
        assert [(one.user, one.error_code) for one in response.results] == [("", error.code)] * count
        assert response.error_code == error.code


def test_users_without_credentials_are_reported(admin: AdminBroker) -> None:
    users = [UserName(name=name) for name in ("nobody", "twice", "twice")]
    request = DescribeUserScramCredentialsRequest(users=users)
    response = drive(admin.broker, request, DescribeUserScramCredentialsResponse)
    codes = {result.user: result.error_code for result in response.results}
    assert codes == {"nobody": ResourceNotFoundError.code, "twice": DuplicateResourceError.code}


def test_an_error_of_a_whole_scram_request_names_its_users() -> None:
    from tidelog.broker.handlers import alter_user_scram_credentials, describe_user_scram_credentials

    request = AlterUserScramCredentialsRequest(upsertions=[upsert("ann")])
    whole = response_of(alter_user_scram_credentials.error_response(request, UnknownServerError()))
    assert [(result.user, result.error_code) for result in whole.results] == [("ann", -1)]
    asked = DescribeUserScramCredentialsRequest(users=None)
    assert describe_user_scram_credentials.error_response(asked, UnknownServerError()).error_code == -1


# Quotas

Entity = list[tuple[str, str | None]]


def alter_quota(
    admin: AdminBroker, entity: Entity, *ops: tuple[str, float | None], version: int = 1, validate_only: bool = False
) -> int:
    entry = alter_quotas.EntryData(
        entity=[alter_quotas.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[alter_quotas.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops],
    )
    request = alter_quotas.AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)
    (answer,) = drive(admin.broker, request, alter_quotas.AlterClientQuotasResponse, version).entries
    return answer.error_code


def quotas(
    admin: AdminBroker, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    request = describe_quotas.DescribeClientQuotasRequest(
        components=[
            describe_quotas.ComponentData(entity_type=kind, match_type=match_type, match=match)
            for kind, match_type, match in components
        ],
        strict=strict,
    )
    response = drive(admin.broker, request, describe_quotas.DescribeClientQuotasResponse, version)
    assert response.error_code == 0
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in response.entries or ()
    }


@pytest.mark.parametrize("version", range(2))
def test_quotas_are_set_removed_and_kept(admin: AdminBroker, version: int) -> None:
    entity: Entity = [("user", "ann"), ("client-id", None)]
    assert alter_quota(admin, entity, ("producer_byte_rate", 1024.0), ("request_percentage", 50.5)) == 0
    key = (("client-id", None), ("user", "ann"))
    again = admin.reopen()
    assert quotas(again, version=version) == {key: {"producer_byte_rate": 1024.0, "request_percentage": 50.5}}
    assert alter_quota(again, entity, ("producer_byte_rate", None), version=version) == 0
    assert quotas(again, version=version) == {key: {"request_percentage": 50.5}}
    assert alter_quota(again, entity, ("request_percentage", None)) == 0
    assert quotas(again) == {}


def test_quotas_can_be_only_validated(admin: AdminBroker) -> None:
    assert alter_quota(admin, [("user", "ann")], ("producer_byte_rate", 1.0), validate_only=True) == 0
    assert quotas(admin) == {}


def test_quotas_are_found_by_filter(admin: AdminBroker) -> None:
    entities: list[Entity] = [[("user", "ann")], [("user", None)], [("user", "ann"), ("client-id", "c")]]
    for entity in entities:
        alter_quota(admin, entity, ("consumer_byte_rate", 1.0))
    alter_quota(admin, [("ip", "10.0.0.1")], ("connection_creation_rate", 5.0))
    ann, default, both = (("user", "ann"),), (("user", None),), (("client-id", "c"), ("user", "ann"))
    assert set(quotas(admin, ("user", 0, "ann"))) == {ann, both}
    assert set(quotas(admin, ("user", 0, "ann"), strict=True)) == {ann}
    assert set(quotas(admin, ("user", 1, None))) == {default}
    assert set(quotas(admin, ("user", 2, None))) == {ann, default, both}
    assert set(quotas(admin, ("user", 2, None), ("client-id", 0, "c"))) == {both}
    assert set(quotas(admin, ("ip", 2, None))) == {(("ip", "10.0.0.1"),)}
    assert len(quotas(admin)) == 4


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        ([], "producer_byte_rate", 1.0),
        ([("user", "a"), ("user", "b")], "producer_byte_rate", 1.0),
        ([("planet", "a")], "producer_byte_rate", 1.0),
        ([("user", "")], "producer_byte_rate", 1.0),
        ([("ip", "10.0.0.1"), ("user", "a")], "connection_creation_rate", 1.0),
        ([("ip", "not an address")], "connection_creation_rate", 1.0),
        ([("ip", None)], "producer_byte_rate", 1.0),
        ([("user", "a")], "connection_creation_rate", 1.0),
        ([("user", "a")], "producer_byte_rate", 0.0),
        ([("user", "a")], "producer_byte_rate", 1.5),
        ([("user", "a")], "producer_byte_rate", float("nan")),
        ([("user", "a")], "request_percentage", -1.0),
    ],
)
def test_bad_quotas_are_refused(admin: AdminBroker, entity: Entity, key: str, value: float) -> None:
    entry = alter_quotas.EntryData(
        entity=[alter_quotas.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[alter_quotas.OpData(key=key, value=value)],
    )
    request = alter_quotas.AlterClientQuotasRequest(entries=[entry])
    (answer,) = drive(admin.broker, request, alter_quotas.AlterClientQuotasResponse).entries
    assert answer.error_code == InvalidRequestError.code
    assert quotas(admin) == {}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("producer_byte_rate", 1.5, "expected a positive whole number below 2^63"),
        ("request_percentage", -1.0, "expected a positive number below 2^63"),
    ],
)
def test_a_refused_quota_says_which_values_are_allowed(
    admin: AdminBroker, key: str, value: float, expected: str
) -> None:
    entry = alter_quotas.EntryData(
        entity=[alter_quotas.EntityData(entity_type="user", entity_name="ann")],
        ops=[alter_quotas.OpData(key=key, value=value)],
    )
    request = alter_quotas.AlterClientQuotasRequest(entries=[entry])
    (answer,) = drive(admin.broker, request, alter_quotas.AlterClientQuotasResponse).entries
    assert answer.error_message == f"Invalid value {value} for {key}: {expected}"


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("planet", 0, "a")], UnsupportedVersionError.code),
        ([("user", 0, "a"), ("user", 0, "b")], InvalidRequestError.code),
        ([("user", 9, None)], InvalidRequestError.code),
        ([("user", 0, None)], InvalidRequestError.code),
        ([("user", 1, "a")], InvalidRequestError.code),
        ([("ip", 2, None), ("user", 2, None)], InvalidRequestError.code),
    ],
)
def test_bad_quota_filters_are_refused(
    admin: AdminBroker, components: list[tuple[str, int, str | None]], code: int
) -> None:
    request = describe_quotas.DescribeClientQuotasRequest(
        components=[
            describe_quotas.ComponentData(entity_type=kind, match_type=match_type, match=match)
            for kind, match_type, match in components
        ]
    )
    response = drive(admin.broker, request, describe_quotas.DescribeClientQuotasResponse)
    assert (response.error_code, response.entries) == (code, None)


# Features


def update(
    admin: AdminBroker, *updates: tuple[str, int, int], version: int = 1, validate_only: bool = False
) -> UpdateFeaturesResponse:
    keys = [
        FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
        if version
        else FeatureUpdateKey(feature=name, max_version_level=level, allow_downgrade=kind > 1)
        for name, level, kind in updates
    ]
    request = UpdateFeaturesRequest(feature_updates=keys, validate_only=validate_only)
    return drive(admin.broker, request, UpdateFeaturesResponse, version)


@pytest.mark.parametrize("version", range(3))
def test_features_go_down_and_up(admin: AdminBroker, version: int) -> None:
    highest = supported_features()["metadata.version"].highest
    assert admin.metadata.features["metadata.version"] == first_level("metadata.version")
    assert update(admin, ("metadata.version", highest, 1), version=version).error_code == 0
    refused = update(admin, ("metadata.version", highest - 1, 1), version=version)
    assert refused.error_code == InvalidUpdateVersionError.code
    assert update(admin, ("metadata.version", highest - 1, 2), version=version).error_code == 0
    again = admin.reopen()
    assert again.metadata.features["metadata.version"] == highest - 1
    assert update(again, ("metadata.version", highest, 1), version=version).error_code == 0
    assert again.metadata.features["metadata.version"] == highest


def test_features_change_all_or_none(admin: AdminBroker) -> None:
    response = update(admin, ("metadata.version", 10, 2), ("no.such", 1, 1))
    assert (response.error_code, response.results) == (InvalidUpdateVersionError.code, [])
    assert admin.metadata.features["metadata.version"] != 10


@pytest.mark.parametrize("version", range(5))
def test_features_are_advertised(admin: AdminBroker, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    update(admin, ("metadata.version", 10, 2))
    response = drive(admin.broker, request, ApiVersionsResponse, version)
    if version < 3:
        assert (response.supported_features, response.finalized_features_epoch) == ([], -1)
        return
    finalized = {key.name: (key.min_version_level, key.max_version_level) for key in response.finalized_features}
    supported = {key.name: FeatureRange(key.min_version, key.max_version) for key in response.supported_features}
    assert finalized == {name: (level, level) for name, level in admin.metadata.features.items()}
    assert finalized["metadata.version"] == (10, 10)
    assert response.finalized_features_epoch == admin.controller.image.offset
    offered = supported_features()
    assert supported == {name: levels for name, levels in offered.items() if version >= 4 or levels.lowest > 0}


def test_feature_updates_can_be_only_validated(admin: AdminBroker) -> None:
    assert update(admin, ("metadata.version", 10, 2), validate_only=True).error_code == 0
    assert admin.metadata.features["metadata.version"] != 10


@pytest.mark.parametrize(("level", "kind"), [(1, 2), (99, 1), (25, 2), (25, 7)])
def test_bad_feature_updates_are_refused(admin: AdminBroker, level: int, kind: int) -> None:
    assert update(admin, ("metadata.version", 20, 2)).error_code == 0
    assert update(admin, ("metadata.version", level, kind)).error_code != 0


def test_features_are_offered_with_their_apis(monkeypatch: pytest.MonkeyPatch, admin: AdminBroker) -> None:
    heartbeat = ApiKey.CONSUMER_GROUP_HEARTBEAT
    without = {key: entry for key, entry in REGISTRY.items() if key != heartbeat}
    monkeypatch.setattr("tidelog.broker.controller.features.REGISTRY", without)
    assert "group.version" not in supported_features()
    monkeypatch.setattr("tidelog.broker.controller.features.REGISTRY", REGISTRY)
    assert supported_features()["group.version"] == FeatureRange(0, 1)
    show_features(admin.controller.image, admin.metadata)
    assert admin.metadata.features["group.version"] == 1
    update(admin, ("group.version", 0, 3))
    assert "group.version" not in admin.metadata.features


# Telemetry


def subscribe(admin: AdminBroker, name: str, **texts: str) -> None:
    changes = [Change(key.replace("_", "."), Operation.SET, text) for key, text in texts.items()]
    admin.configs.alter(ResourceType.CLIENT_METRICS, name, changes, False)


def subscription(admin: AdminBroker, instance: bytes = ZERO_UUID) -> GetTelemetrySubscriptionsResponse:
    request = GetTelemetrySubscriptionsRequest(client_instance_id=instance)
    return drive(admin.broker, request, GetTelemetrySubscriptionsResponse, context=context_of(0, client_id="app-1"))


def push(admin: AdminBroker, instance: bytes, subscription_id: int, metrics: bytes = b"m", compression: int = 0) -> int:
    request = PushTelemetryRequest(
        client_instance_id=instance, subscription_id=subscription_id, metrics=metrics, compression_type=compression
    )
    return drive(admin.broker, request, PushTelemetryResponse, context=context_of(0, client_id="app-1")).error_code


def test_without_subscriptions_nothing_is_asked_for(admin: AdminBroker) -> None:
    response = subscription(admin)
    assert response.client_instance_id != ZERO_UUID
    assert (response.requested_metrics, response.push_interval_ms) == ([], 300_000)
    assert subscription(admin, response.client_instance_id).client_instance_id == response.client_instance_id


def test_subscriptions_that_match_are_put_together(admin: AdminBroker) -> None:
    subscribe(admin, "a", metrics="b,a", interval_ms="1000")
    subscribe(admin, "b", metrics="c", match="client_id=app-.*,client_source_address=10\\..*")
    subscribe(admin, "c", metrics="d", match="client_id=other")
    subscribe(admin, "d", metrics="e", match="client_software_name=known to nobody here")
    response = subscription(admin)
    assert (response.requested_metrics, response.push_interval_ms) == (["a", "b", "c"], 1000)
    subscribe(admin, "e", metrics="*")
    assert subscription(admin).requested_metrics == ["*"]


@pytest.mark.parametrize(
    ("match", "is_matching"),
    [
        ("client_software_name=apache-kafka-.*,client_software_version=4\\..*", True),
        ("client_software_name=librdkafka", False),
        ("client_software_version=3\\..*", False),
        ("client_source_port=40\\d+", True),
        ("client_source_port=9092", False),
    ],
)
def test_a_subscription_matches_by_software_and_port(admin: AdminBroker, match: str, is_matching: bool) -> None:
    subscribe(admin, "a", metrics="m", match=match)
    context = context_of(3)
    context.client_port = 40_123
    greeting = ApiVersionsRequest(client_software_name="apache-kafka-java", client_software_version="4.3.1")
    drive(admin.broker, greeting, ApiVersionsResponse, context=context)
    context.api_version = 0
    response = drive(
        admin.broker, GetTelemetrySubscriptionsRequest(), GetTelemetrySubscriptionsResponse, context=context
    )
    assert response.requested_metrics == (["m"] if is_matching else [])


def test_metrics_are_pushed_under_the_present_subscription(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path, {"telemetry.max.bytes": "10"})
    subscribe(admin, "a", metrics="*")
    given = subscription(admin)
    assert push(admin, given.client_instance_id, given.subscription_id) == 0
    assert push(admin, ZERO_UUID, given.subscription_id) == InvalidRequestError.code
    too_large = push(admin, given.client_instance_id, given.subscription_id, b"m" * 11)
    assert too_large == TelemetryTooLargeError.code
    codes = [push(admin, given.client_instance_id, given.subscription_id, compression=one) for one in (4, 5, -1)]
    assert codes == [0, UnsupportedCompressionTypeError.code, UnsupportedCompressionTypeError.code]
    subscribe(admin, "a", interval_ms="1000")
    stale = push(admin, given.client_instance_id, given.subscription_id)
    assert stale == UnknownSubscriptionIdError.code


# Log directories


async def test_log_directories_are_described(tmp_path: Path) -> None:
    directory = tmp_path / "one"
    admin = AdminBroker(directory, {"log.dirs": f"{directory},{tmp_path}/missing"})
    create_topic(admin, "a-b", 2)
    create_topic(admin, "c", 1)
    for name, size in (("a-b-0", 5), ("a-b-1", 7), ("a-b-2", 9), ("c-0", 1), ("gone-0", 3), ("x.1-delete", 3)):
        (directory / name).mkdir()
        (directory / name / "00000000000000000000.log").write_bytes(bytes(size))
        (directory / name / "00000000000000000000.index").write_bytes(bytes(100))
    with ThreadPoolExecutor(1) as executor:
        admin.broker = replace(admin.broker, loop=asyncio.get_running_loop(), executor=executor)
        everything = await described(admin, DescribeLogDirsRequest(topics=None))
        some = await described(
            admin, DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="a-b", partitions=[1, 9])])
        )
        admin.log_manager.cordon([str(directory)])
        unknown = await described(admin, DescribeLogDirsRequest(topics=[]))
        admin.controller.commit([level_record("metadata.version", 30)])
        cordoned = await described(admin, DescribeLogDirsRequest(topics=[]))
    assert [one.is_cordoned for one in unknown.results] == [False, False]  # the level knows none
    assert [one.is_cordoned for one in cordoned.results] == [True, False]
    first, missing = everything.results
    sizes = {
        topic.name: [(entry.partition_index, entry.partition_size) for entry in topic.partitions]
        for topic in first.topics
    }
    assert sizes == {"a-b": [(0, 5), (1, 7)], "c": [(0, 1)]}
    assert (first.log_dir, first.error_code) == (str(directory), 0)
    assert first.total_bytes >= first.usable_bytes > 0
    assert missing.error_code == KafkaStorageError.code
    assert [topic.name for topic in some.results[0].topics] == ["a-b"]
    assert [entry.partition_index for entry in some.results[0].topics[0].partitions] == [1]
    assert describe_log_dirs.error_response(DescribeLogDirsRequest(), UnknownServerError()).error_code == -1


def test_a_topic_that_is_deleted_meanwhile_fails_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a-0", "b-0"):
        (tmp_path / name).mkdir()
    count = describe_log_dirs.log_bytes

    def delete_and_count(path: str) -> int:
        if path.endswith("a-0"):
            (tmp_path / "a-0").rename(tmp_path / "a-0.1-delete")
        return count(path)

    monkeypatch.setattr(describe_log_dirs, "log_bytes", delete_and_count)
    result = describe_log_dirs.describe_directory(str(tmp_path), {"a": 1, "b": 1}, None)
    assert (result.error_code, [topic.name for topic in result.topics]) == (0, ["b"])


async def described(admin: AdminBroker, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    deferred = describe_log_dirs.handle(admin.broker, context_of(5), request)
    assert isinstance(deferred, Deferred)
    answered = asyncio.Event()
    deferred.on_done(lambda _: answered.set())
    await answered.wait()
    return DescribeLogDirsResponse.decode(deferred.result().encode(5), 5)


def test_telemetry_is_listed_while_a_subscription_exists(admin: AdminBroker) -> None:
    def listed() -> set[int]:
        request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        return {entry.api_key for entry in drive(admin.broker, request, ApiVersionsResponse, 3).api_keys}

    telemetry = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
    assert listed() == set(REGISTRY) - telemetry
    subscribe(admin, "s", metrics="*")
    assert listed() == set(REGISTRY)


def test_forwarded_apis_are_listed_with_the_versions_of_the_controller(admin: AdminBroker) -> None:
    limits: ForwardedVersions = {
        ApiKey.CREATE_TOPICS: (2, 9),
        ApiKey.ADD_RAFT_VOTER: (0, 0),
        ApiKey.UPDATE_FEATURES: None,
    }
    admin.broker = replace(admin.broker, controller=RemoteController(EMPTY_IMAGE, 1, lambda: limits))
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    answered = drive(admin.broker, request, ApiVersionsResponse, 3).api_keys
    listed = {entry.api_key: (entry.min_version, entry.max_version) for entry in answered}
    assert (listed[ApiKey.CREATE_TOPICS], listed[ApiKey.ADD_RAFT_VOTER]) == ((2, 7), (0, 0))
    assert ApiKey.UPDATE_FEATURES not in listed
    assert listed[ApiKey.METADATA] == (0, 13)


def test_a_quota_that_has_its_value_already_is_not_written_again(tmp_path: Path) -> None:
    """A script that sets quotas at each of its runs would lengthen the metadata log."""
    admin = AdminBroker(tmp_path)
    quotas, entity = ClientQuotas(admin.controller), entity_of([("user", "ann")])
    rate, share = QuotaChange("producer_byte_rate", 5.0), QuotaChange("request_percentage", 50.0)
    quotas.alter(entity, [rate, share], validate_only=False)
    end = admin.controller.end_offset
    quotas.alter(entity, [rate, share, QuotaChange("consumer_byte_rate", None)], validate_only=False)
    assert admin.controller.end_offset == end
    quotas.alter(entity, [rate, QuotaChange("request_percentage", None)], validate_only=False)
    assert dict(quotas.entities()[entity]) == {"producer_byte_rate": 5.0}


@pytest.mark.parametrize("value", [6.0, None])
def test_a_request_that_names_a_quota_twice_changes_none_of_the_entity(tmp_path: Path, value: float | None) -> None:
    admin = AdminBroker(tmp_path)
    quotas, entity = ClientQuotas(admin.controller), entity_of([("user", "ann")])
    changes = [QuotaChange("request_percentage", 5.0)]
    changes += [QuotaChange("producer_byte_rate", one) for one in (5.0, value)]
    with pytest.raises(InvalidRequestError, match="Duplicate quota key producer_byte_rate"):
        quotas.alter(entity, changes, validate_only=False)
    assert entity not in quotas.entities()


@pytest.mark.parametrize("api", ["quotas", "credentials", "topics"])
def test_long_descriptions_are_built_in_steps(tmp_path: Path, api: str) -> None:
    """Ten thousand quotas or users took 14 to 40 ms in one turn of the loop."""
    admin, count = AdminBroker(tmp_path), 30
    for number in range(count):
        name = f"n{number}"
        if api == "quotas":
            ClientQuotas(admin.controller).alter(
                entity_of([("user", name)]), [QuotaChange("producer_byte_rate", 1.0)], validate_only=False
            )
        elif api == "credentials":
            ScramCredentials(admin.controller).put(name, ScramMechanism.SCRAM_SHA_256, 4096, b"salt", bytes(32))
        else:
            create_topic(admin, name, 1)
    request: Message = {
        "quotas": describe_quotas.DescribeClientQuotasRequest(components=[], strict=False),
        "credentials": DescribeUserScramCredentialsRequest(users=None),
        "topics": ListConfigResourcesRequest(resource_types=[ResourceType.TOPIC]),
    }[api]
    handled = handler_of(request).handle(admin.broker, context_of(request.VERSIONS.highest), request)
    assert len(list(handled)) >= count
