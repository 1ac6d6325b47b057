"""The SASL exchange in every state, with every API and version: only the transitions in the module's docstring are
possible."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable

import pytest

from tidelog.broker.controller.clients.scram_credentials import ScramMechanism
from tidelog.broker.requests.registry import REGISTRY
from tidelog.broker.security.sasl.authenticator import MAX_FRAMES, PASS_ON, Identity, Outcome, SaslAuthenticator, State
from tidelog.broker.security.sasl.mechanism import Mechanism
from tidelog.broker.security.sasl.plain import PlainServer, PlainUsers
from tidelog.broker.security.sasl.scram import ScramServer, ScramUsers
from tidelog.protocol.api_keys import ApiKey, request_header_version, response_header_version
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

GOOD, WRONG = b"\0ann\0secret", b"\0ann\0wrong"
ANN = Identity("ann", "PLAIN")
INVALID = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
MECHANISMS: dict[str, Callable[[], Mechanism]] = {
    "PLAIN": lambda: PlainServer(PlainUsers({"ann": "secret", "bob": "secret"})),
    "SCRAM-SHA-256": lambda: ScramServer(ScramUsers(ScramMechanism.SCRAM_SHA_256, lambda *_: None)),
}


def frame_of(api_key: int, version: int, body: bytes = b"") -> memoryview:
    """Encode a request's frame with correlation id 7 and no client id."""
    header = struct.pack(">hhih", api_key, version, 7, -1)
    flexible = request_header_version(ApiKey(api_key), version) >= 2
    return memoryview(header + (b"\0" if flexible else b"") + body)


def handshake(mechanism: str = "PLAIN", version: int = 1) -> memoryview:
    return frame_of(17, version, SaslHandshakeRequest(mechanism=mechanism).encode(version))


def token(data: bytes = GOOD, version: int = 2) -> memoryview:
    return frame_of(36, version, SaslAuthenticateRequest(auth_bytes=data).encode(version))


def exchange(state: State, lifetime_ms: int = 0) -> SaslAuthenticator:
    """Build an exchange in this state."""
    found = SaslAuthenticator(MECHANISMS, dict.fromkeys(MECHANISMS, lifetime_ms))
    if state is State.HANDSHAKE:
        found.receive(frame_of(18, 0))
    elif state is State.AUTHENTICATE:
        found.receive(handshake())
    elif state is State.BARE_TOKENS:
        found.receive(handshake(version=0))
    assert found.state is state
    return found


def body_of(outcome: Outcome, key: int, version: int) -> memoryview:
    assert outcome.frame is not None
    length, correlation_id = struct.unpack_from(">ii", outcome.frame)
    assert (length, correlation_id) == (len(outcome.frame) - 4, 7)
    return memoryview(outcome.frame)[9 if response_header_version(ApiKey(key), version) else 8 :]


ALLOWED = {
    (State.INITIAL, 17): State.AUTHENTICATE,
    (State.HANDSHAKE, 17): State.AUTHENTICATE,
    (State.AUTHENTICATE, 36): State.COMPLETE,
}


@pytest.mark.parametrize("state", [State.INITIAL, State.HANDSHAKE, State.AUTHENTICATE])
@pytest.mark.parametrize("api_key", sorted(REGISTRY))
def test_each_state_accepts_its_own_requests_alone(state: State, api_key: int) -> None:
    entry = REGISTRY[api_key]
    for version in range(entry.min_version, entry.max_version + 1):
        body = b""
        if api_key == 17:
            body = SaslHandshakeRequest(mechanism="PLAIN").encode(version)
        elif api_key == 36:
            body = SaslAuthenticateRequest(auth_bytes=GOOD).encode(version)
        found = exchange(state)
        outcome = found.receive(frame_of(api_key, version, body))
        if (state, api_key) == (State.INITIAL, 18):
            assert (outcome, found.state) == (PASS_ON, State.HANDSHAKE)
        elif (state, api_key) in ALLOWED:
            expected = State.BARE_TOKENS if (api_key, version) == (17, 0) else ALLOWED[state, api_key]
            assert (outcome.failure, found.state) == (None, expected)
        else:
            assert outcome.failure is not None
            assert outcome is not PASS_ON
            assert (found.state, found.identity) == (State.FAILED, None)


@pytest.mark.parametrize("state", [State.INITIAL, State.HANDSHAKE, State.AUTHENTICATE, State.BARE_TOKENS])
def test_random_frames_never_authenticate_and_raise_no_unexpected_error(state: State) -> None:
    rng = random.Random(7)
    keys = [17, 18, 36, 0, 3, 999]
    for _ in range(3000):
        data = rng.randbytes(rng.randrange(0, 40))
        if rng.random() < 0.7:
            data = struct.pack(">hhih", rng.choice(keys), rng.randrange(-1, 6), 7, rng.choice([-1, 0, 5])) + data
        found = exchange(state)
        outcome = found.receive(memoryview(data))
        assert found.identity is None
        assert outcome.failure is None or found.state is State.FAILED


def test_an_unknown_version_of_api_versions_may_be_repeated_and_a_known_one_may_not() -> None:
    found = exchange(State.INITIAL)
    assert found.receive(frame_of(18, 99)) is PASS_ON
    assert found.receive(frame_of(18, 4)) is PASS_ON
    assert found.receive(frame_of(18, 4)).failure is not None


@pytest.mark.parametrize("version", [0, 1])
def test_an_unknown_mechanism_is_answered_with_those_there_are(version: int) -> None:
    found = exchange(State.INITIAL)
    outcome = found.receive(handshake("CRAM-MD5", version))
    response = SaslHandshakeResponse.decode(body_of(outcome, 17, version), version)
    assert (response.error_code, response.mechanisms) == (33, ["PLAIN", "SCRAM-SHA-256"])
    assert outcome.failure is not None


def test_a_second_handshake_in_the_exchange_is_an_illegal_state() -> None:
    outcome = exchange(State.AUTHENTICATE).receive(handshake())
    assert SaslHandshakeResponse.decode(body_of(outcome, 17, 1), 1).error_code == 34
    assert outcome.failure is not None


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_last_token_names_the_user_and_tells_the_lifetime(version: int) -> None:
    found = exchange(State.AUTHENTICATE, lifetime_ms=5000)
    outcome = found.receive(token(version=version))
    response = SaslAuthenticateResponse.decode(body_of(outcome, 36, version), version)
    assert (response.error_code, response.session_lifetime_ms) == (0, 5000 if version else 0)
    assert found.identity == ANN


@pytest.mark.parametrize(
    ("mechanism", "data", "message"),
    [
        ("PLAIN", WRONG, "Authentication failed: Invalid username or password"),
        ("PLAIN", b"\0\0", f"{INVALID} PLAIN"),
        ("SCRAM-SHA-256", b"x", f"{INVALID} SCRAM-SHA-256"),
    ],
)  # fmt: skip
def test_a_failure_is_answered_in_kafkas_words(mechanism: str, data: bytes, message: str) -> None:
    found = exchange(State.INITIAL)
    found.receive(handshake(mechanism))
    outcome = found.receive(token(data))
    response = SaslAuthenticateResponse.decode(body_of(outcome, 36, 2), 2)
    assert (response.error_code, response.error_message) == (58, message)
    assert outcome.failure == message


def test_after_a_handshake_of_version_0_tokens_come_bare() -> None:
    found = exchange(State.BARE_TOKENS)
    assert found.receive(memoryview(GOOD)) == Outcome(b"\0\0\0\0")
    assert found.identity == ANN


def test_a_wrong_bare_token_is_not_answered() -> None:
    outcome = exchange(State.BARE_TOKENS).receive(memoryview(WRONG))
    assert outcome.frame is None
    assert outcome.failure is not None


def test_an_exchange_with_too_many_frames_fails() -> None:
    found = exchange(State.INITIAL)
    outcomes = [found.receive(frame_of(18, 99)) for _ in range(MAX_FRAMES + 1)]
    assert [outcome.failure is None for outcome in outcomes] == [True] * MAX_FRAMES + [False]


def again(mechanism: str, data: bytes) -> tuple[SaslAuthenticator, Outcome]:
    found = SaslAuthenticator(MECHANISMS, {}, ANN)
    found.receive(handshake(mechanism))
    return found, found.receive(token(data))


def test_a_client_authenticates_again() -> None:
    found, outcome = again("PLAIN", GOOD)
    assert (found.identity, outcome.failure) == (ANN, None)


@pytest.mark.parametrize(
    ("mechanism", "data", "reason"),
    [
        ("PLAIN", b"\0bob\0secret", "Cannot change principals during re-authentication"),
        ("SCRAM-SHA-256", b"n,,n=ann,r=x", "not supported for reauthentication of mechanism 'PLAIN'"),
        ("PLAIN", b"\0", "Authentication failed during re-authentication"),
        ("PLAIN", WRONG, "Invalid username or password"),
    ],
)
def test_a_re_authentication_is_as_the_same_user_by_the_same_mechanism(
    mechanism: str, data: bytes, reason: str
) -> None:
    found, outcome = again(mechanism, data)
    assert found.identity is None
    assert reason in (outcome.failure or "")
    assert SaslAuthenticateResponse.decode(body_of(outcome, 36, 2), 2).error_code == 58


def test_a_re_authentication_begins_with_a_handshake() -> None:
    for key, version in itertools.product((18, 36, 3), (0, 1)):
        found = SaslAuthenticator(MECHANISMS, {}, ANN)
        assert found.receive(frame_of(key, version)).failure is not None
