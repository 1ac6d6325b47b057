"""The exchange that authenticates one connection: frames in, outcomes out. Kafka's SaslServerAuthenticator, sans-io.

    state               accepts                                   goes to
    INITIAL             ApiVersions, answered by the broker       HANDSHAKE
    INITIAL, HANDSHAKE  SaslHandshake v1; v0                      AUTHENTICATE; BARE_TOKENS
    AUTHENTICATE        SaslAuthenticate, until the last token    COMPLETE
    BARE_TOKENS         bare tokens, until the last               COMPLETE
    any                 anything else, an unknown mechanism, a    FAILED
                        wrong token

A re-authentication (KIP-368) begins at HANDSHAKE, and must have the same mechanism and user as before. TABLE is this
table as code, without BARE_TOKENS. A token may need work in a thread: then the outcome has ``work``. The caller runs
``work`` in a thread, and passes ``conclude`` a function that returns its reply or raises its error. No other frame is
received meanwhile.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import partial
from time import time
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from tidelog.broker.security.sasl.errors import AuthenticationFailedError, InvalidTokenError
from tidelog.broker.security.sasl.mechanism import Evaluation, Mechanism, Reply
from tidelog.protocol.api_keys import ApiKey, response_header_version
from tidelog.protocol.errors import (
    IllegalSaslStateError,
    InvalidRequestError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from tidelog.protocol.header import RequestHeader, decode_request_header
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tidelog.protocol.schema.fields import Message

NO_LIFETIMES: Mapping[str, int] = MappingProxyType({})
MAX_FRAMES = 16
"""Largest number of frames in one exchange; every mechanism needs far fewer."""
_PREFIXES = (struct.Struct(">ii"), struct.Struct(">iix"))
"""Length of the frame and response header (the correlation id), by version of the header."""
_LENGTH = struct.Struct(">i")


class State(Enum):
    """States of an exchange."""

    INITIAL = auto()
    HANDSHAKE = auto()
    AUTHENTICATE = auto()
    BARE_TOKENS = auto()
    COMPLETE = auto()
    FAILED = auto()


class Identity(NamedTuple):
    """The result of a complete exchange: who the client is, and by which mechanism."""

    user: str
    mechanism: str
    is_by_token: bool = False
    """True if a delegation token was used in place of a password."""


class Outcome(NamedTuple):
    """The result of one frame: an answer to send, if any, and for a failure the reason, which may be logged."""

    frame: bytes | None
    failure: str | None = None
    work: Evaluation | None = None
    """Work for a thread, after which the caller calls ``conclude``. There is no answer yet."""


PASS_ON = Outcome(None)
"""Outcome of a request that the broker answers: ApiVersions."""

Factories = Mapping[str, Callable[[], Mechanism]]
"""Mechanisms of a listener by name; each call begins an exchange."""


class SaslAuthenticator:
    """One exchange: a connection's authentication, or a re-authentication."""

    __slots__ = (
        "_frames",
        "_header",
        "_lifetimes_ms",
        "_mechanism",
        "_mechanisms",
        "_now_ms",
        "_previous",
        "claimed",
        "identity",
        "lifetime_ms",
        "mechanism",
        "refusal",
        "state",
    )

    def __init__(
        self,
        mechanisms: Factories,
        lifetimes_ms: Mapping[str, int] = NO_LIFETIMES,
        previous: Identity | None = None,
        now_ms: Callable[[], int] = lambda: int(time() * 1000),
    ) -> None:
        """``lifetimes_ms`` has the longest session of each mechanism; ``previous`` is given for a re-authentication;
        ``now_ms`` returns the time of the wall clock.
        """
        self.state = State.INITIAL if previous is None else State.HANDSHAKE
        self.identity: Identity | None = None
        self.mechanism = ""
        """The mechanism that the client chose."""
        self.claimed = ""
        """The name that the client gave, which is not authenticated."""
        self.refusal: str | None = None
        """The reason why the login cannot succeed any more, once there is one."""
        self._mechanisms = mechanisms
        self._mechanism: Mechanism | None = None
        self.lifetime_ms = 0
        """Lifetime of the session in ms, which the client gets; 0 if it has no end. The session ends with its
        credential at the latest.
        """
        self._lifetimes_ms = lifetimes_ms
        self._now_ms = now_ms
        self._previous = previous
        self._frames = 0
        self._header: RequestHeader | None = None
        """Header of the SaslAuthenticate that is being answered; None for a bare token."""

    def receive(self, frame: memoryview) -> Outcome:
        """Take the client's next frame, without its length."""
        self._frames += 1
        if self._frames > MAX_FRAMES:
            return self._fail("too many requests before it was authenticated")
        if self.state is State.BARE_TOKENS:
            return self._evaluate(bytes(frame))
        try:
            header, position = decode_request_header(frame)
            step = TABLE.get((self.state, header.api_key))
            if step is None:
                return self._fail(
                    f"unexpected request of type {ApiKey(header.api_key).name} during SASL authentication"
                )
            return step(self, header, frame[position:])
        except InvalidRequestError as error:
            return self._fail(f"malformed request during SASL authentication: {error.message}")

    def _pass_on(self, header: RequestHeader, _body: memoryview) -> Outcome:
        """Leave ApiVersions to the broker. After a version that the broker serves, a handshake must follow; after
        another one the client may send ApiVersions again.
        """
        if header.api_version <= MAX_API_VERSIONS:
            self.state = State.HANDSHAKE
        return PASS_ON

    def _begin(self, header: RequestHeader, body: memoryview) -> Outcome:
        """Answer SaslHandshake, and begin the mechanism that the client chose. Raises InvalidRequestError."""
        check_version(header, SaslHandshakeRequest)
        chosen = SaslHandshakeRequest.decode(body, header.api_version).mechanism
        self.mechanism = chosen
        response = SaslHandshakeResponse(mechanisms=list(self._mechanisms))
        if chosen not in self._mechanisms:
            response.error_code = UnsupportedSaslMechanismError.code
            return self._fail("its SASL mechanism is not enabled", encode(header, response))
        self._mechanism = self._mechanisms[chosen]()
        self.lifetime_ms = self._lifetimes_ms.get(chosen, 0)
        self.state = State.AUTHENTICATE if header.api_version else State.BARE_TOKENS
        return Outcome(encode(header, response))

    def _refuse_handshake(self, header: RequestHeader, _body: memoryview) -> Outcome:
        check_version(header, SaslHandshakeRequest)
        response = SaslHandshakeResponse(error_code=IllegalSaslStateError.code)
        return self._fail("a second SaslHandshake during SASL authentication", encode(header, response))

    def _authenticate(self, header: RequestHeader, body: memoryview) -> Outcome:
        """Evaluate the token of a SaslAuthenticate. Raises InvalidRequestError."""
        check_version(header, SaslAuthenticateRequest)
        request = SaslAuthenticateRequest.decode(body, header.api_version)
        self._header = header
        return self._evaluate(bytes(request.auth_bytes))

    def _evaluate(self, token: bytes) -> Outcome:
        """Evaluate a token, or return an outcome with the work that a thread has to do for it."""
        mechanism = self._mechanism
        assert mechanism is not None
        try:
            self._check_mechanism()
            reply = mechanism.evaluate(token)
        except (AuthenticationFailedError, InvalidTokenError) as error:
            return self.conclude(partial(throw, error))
        return self.conclude(lambda: reply) if isinstance(reply, Reply) else Outcome(None, work=reply)

    def _check_mechanism(self) -> None:
        """Check the mechanism of a re-authentication against the one before. Raises AuthenticationFailedError."""
        previous = self._previous
        if previous is not None and previous.mechanism != self.mechanism:
            raise AuthenticationFailedError(
                f"SASL mechanism '{self.mechanism}' requested by client is not supported for reauthentication of "
                f"mechanism '{previous.mechanism}'"
            )

    def conclude(self, evaluation: Evaluation) -> Outcome:
        """Return the answer to a token. ``evaluation`` returns the reply, which is ready, or raises the error. After
        the last token the exchange is complete.
        """
        header, response = self._header, SaslAuthenticateResponse()
        try:
            reply = self._accept(evaluation)
        except AuthenticationFailedError as error:
            if header is None:
                return self._fail(error.reason)
            response.error_code, response.error_message = SaslAuthenticationFailedError.code, str(error)
            return self._fail(error.reason, encode(header, response))
        if header is None:
            return Outcome(_LENGTH.pack(len(reply.token)) + reply.token)
        response.auth_bytes = reply.token
        if self.state is State.COMPLETE and header.api_version:
            response.session_lifetime_ms = self.lifetime_ms
        return Outcome(encode(header, response))

    def _accept(self, evaluation: Evaluation) -> Reply:
        """Return the mechanism's reply. Raises AuthenticationFailedError."""
        mechanism, previous = self._mechanism, self._previous
        assert mechanism is not None
        kind = "authentication" if previous is None else "re-authentication"
        try:
            reply = evaluation()
        except InvalidTokenError:
            raise AuthenticationFailedError(
                f"Authentication failed during {kind} due to invalid credentials with SASL mechanism {self.mechanism}"
            ) from None
        finally:
            self.claimed = mechanism.claimed
        self.refusal = reply.refusal
        if reply.user is not None:
            if previous is not None and previous.user != reply.user:
                raise AuthenticationFailedError(
                    f"Cannot change principals during re-authentication from User.{previous.user}: User.{reply.user}"
                )
            self.identity = Identity(reply.user, self.mechanism, reply.is_by_token)
            if reply.expires_ms is not None:
                left_ms = max(reply.expires_ms - self._now_ms(), 1)
                self.lifetime_ms = min(left_ms, self.lifetime_ms) if self.lifetime_ms else left_ms
            self.state = State.COMPLETE
        return reply

    def _fail(self, reason: str, frame: bytes | None = None) -> Outcome:
        self.state = State.FAILED
        return Outcome(frame, reason)


Step = Callable[[SaslAuthenticator, RequestHeader, memoryview], Outcome]
MAX_API_VERSIONS = 4
"""Highest version of ApiVersions that the broker serves."""
TABLE: dict[tuple[State, int], Step] = {
    (State.INITIAL, ApiKey.API_VERSIONS): SaslAuthenticator._pass_on,
    (State.INITIAL, ApiKey.SASL_HANDSHAKE): SaslAuthenticator._begin,
    (State.HANDSHAKE, ApiKey.SASL_HANDSHAKE): SaslAuthenticator._begin,
    (State.AUTHENTICATE, ApiKey.SASL_AUTHENTICATE): SaslAuthenticator._authenticate,
    (State.AUTHENTICATE, ApiKey.SASL_HANDSHAKE): SaslAuthenticator._refuse_handshake,
}


def throw(error: Exception) -> NoReturn:
    """Raise the error."""
    raise error


def check_version(header: RequestHeader, request: type[Message]) -> None:
    """Raise InvalidRequestError for a version that is not served."""
    if not request.VERSIONS.has(header.api_version):
        raise InvalidRequestError(f"version {header.api_version} is not served")


def encode(header: RequestHeader, response: Message) -> bytes:
    """Encode a response as a frame with its length and header."""
    prefix = _PREFIXES[response_header_version(ApiKey(header.api_key), header.api_version)]
    body = response.encode(header.api_version)
    return prefix.pack(len(body) + prefix.size - 4, header.correlation_id) + body
