"""Requests that are forwarded to the active controller: answers, errors, changes of the controller, timeouts."""

from __future__ import annotations

import pytest

from tidelog.broker.cluster.forwarding import TIMEOUT_MS, ForwardedRequest, build_envelope
from tidelog.protocol import errors
from tidelog.protocol.messages.envelope import DefaultPrincipalData, EnvelopeResponse

ALICE = DefaultPrincipalData(type="User", name="alice", token_authenticated=True)


def request(now_ms: float = 0) -> ForwardedRequest:
    return ForwardedRequest(build_envelope(memoryview(b"request"), ALICE, "10.1.2.3"), now_ms)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.1.2.3", bytes([10, 1, 2, 3])),
        ("::1", bytes(15) + b"\1"),
        ("fe80::1%eth0", bytes.fromhex("fe80") + bytes(13) + b"\1"),
    ],
)
def test_an_envelope_has_principal_and_address_of_the_client(host: str, address: bytes) -> None:
    envelope = build_envelope(memoryview(b"request"), ALICE, host)
    assert (envelope.request_data, envelope.client_host_address) == (b"request", address)
    assert envelope.request_principal is not None
    assert envelope.request_principal[:2] == b"\0\0"
    principal = DefaultPrincipalData.decode(memoryview(envelope.request_principal)[2:], 0)
    assert (principal.type, principal.name, principal.token_authenticated) == ("User", "alice", True)


def test_the_answer_is_the_controllers() -> None:
    asked = request()
    asked.take_answer(EnvelopeResponse(response_data=b"answer"), 5)
    assert (asked.is_settled, asked.response, asked.error) == (True, b"answer", None)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errors.ClusterAuthorizationFailedError.code, errors.UnknownServerError),
        (errors.UnsupportedVersionError.code, errors.UnsupportedVersionError),
        (0, errors.UnknownServerError),
    ],
)
def test_an_error_of_the_envelope_fails_the_request(code: int, error: type[errors.KafkaError]) -> None:
    asked = request()
    asked.take_answer(EnvelopeResponse(error_code=code), 5)
    assert asked.is_settled
    assert isinstance(asked.error, error)


def test_another_controller_is_asked_until_the_clients_time_is_over() -> None:
    asked = request(100)
    now_ms = 100.0
    waits: list[float] = []
    while not asked.is_settled:
        if len(waits) % 2:
            asked.take_answer(EnvelopeResponse(error_code=errors.NotControllerError.code), now_ms)
        else:
            asked.take_failure(now_ms)
        waits.append(asked.not_before_ms - now_ms)
        now_ms = max(now_ms, asked.not_before_ms)
    assert waits[:6] == [50, 100, 200, 400, 800, 1000]
    assert isinstance(asked.error, errors.RequestTimedOutError)
    assert now_ms == 100 + TIMEOUT_MS, "the last one is asked at the end of the time, not after it"


def test_an_answer_after_failures_counts() -> None:
    asked = request()
    asked.take_failure(10)
    asked.take_failure(200)
    asked.take_answer(EnvelopeResponse(response_data=b""), 300)
    assert asked.response == b""
