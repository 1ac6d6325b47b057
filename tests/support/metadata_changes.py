"""Requests that change configs, quotas and SCRAM users of any broker."""

from __future__ import annotations

from tidelog.client import Client
from tidelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from tidelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

SHA_256, SHA_512 = 1, 2


def alter(bootstrap: str, kind: int, name: str, key: str, value: str | None) -> None:
    config = AlterableConfig(name=key, config_operation=int(value is None), value=value)
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    with Client(bootstrap, timeout_s=30) as client:
        request = IncrementalAlterConfigsRequest(resources=[resource])
        answer = client.send(request, IncrementalAlterConfigsResponse, 1).responses[0]
        assert answer.error_code == 0, answer


def set_quota(bootstrap: str, entity: list[tuple[str, str | None]], key: str, value: float | None) -> None:
    parts = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    change = OpData(key=key, value=value or 0.0, remove=value is None)
    request = AlterClientQuotasRequest(entries=[EntryData(entity=parts, ops=[change])])
    with Client(bootstrap, timeout_s=30) as client:
        answer = client.send(request, AlterClientQuotasResponse, 1).entries[0]
        assert answer.error_code == 0, answer


def set_user(bootstrap: str, user: str, mechanism: int, iterations: int | None) -> None:
    request = AlterUserScramCredentialsRequest()
    if iterations is None:
        request.deletions = [ScramCredentialDeletion(name=user, mechanism=mechanism)]
    else:
        request.upsertions = [
            ScramCredentialUpsertion(
                name=user, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=b"p" * 32
            )
        ]
    with Client(bootstrap, timeout_s=30) as client:
        answer = client.send(request, AlterUserScramCredentialsResponse, 0).results[0]
        assert answer.error_code == 0, answer
