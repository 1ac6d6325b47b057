"""Requests that a member forwards, and those that stay here."""

from __future__ import annotations

import pytest

from tidelog.broker.config.description import ResourceType
from tidelog.broker.member.forwarding.dispatcher import has_transactional_id, is_about_loggers, producer_of
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.header import RequestHeader, encode_request_header
from tidelog.protocol.messages.incremental_alter_configs import AlterConfigsResource, IncrementalAlterConfigsRequest
from tidelog.protocol.messages.produce import ProduceRequest
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch
from tidelog.protocol.schema.fields import Message


def frame(api_key: int, version: int, request: Message) -> memoryview:
    header = RequestHeader(api_key, version, 7, "client")
    return memoryview(encode_request_header(header) + request.encode(version))


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@pytest.mark.parametrize("transactional_id", [None, "id"])
def test_the_transactional_id_of_a_produce_request(version: int, transactional_id: str | None) -> None:
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1)
    assert has_transactional_id(frame(ApiKey.PRODUCE, version, request)) is (transactional_id is not None)


@pytest.mark.parametrize(
    ("kinds", "answer"),
    [
        ([ResourceType.BROKER_LOGGER], True),
        ([ResourceType.BROKER_LOGGER, ResourceType.TOPIC], False),
        ([ResourceType.TOPIC], False),
        ([], False),
    ],
)
def test_levels_of_loggers_are_changed_here(kinds: list[ResourceType], answer: bool) -> None:
    resources = [AlterConfigsResource(resource_type=kind, resource_name="1") for kind in kinds]
    request = IncrementalAlterConfigsRequest(resources=resources)
    assert is_about_loggers(request) is answer


def test_the_producer_of_a_transactional_batch() -> None:
    records = [Record(0, 1, None, b"value", [])]

    def batch(*, is_transactional: bool) -> memoryview:
        options = BatchOptions(producer_id=9, producer_epoch=2, base_sequence=0, is_transactional=is_transactional)
        return memoryview(build_batch(records, options))

    assert producer_of(batch(is_transactional=True)) == (9, 2)
    assert producer_of(batch(is_transactional=False)) is None
    assert producer_of(batch(is_transactional=True)[:60]) is None
    assert producer_of(None) is None
