"""Client requests that a member forwards unchanged to the active controller, each in an Envelope (KIP-590).

    build_envelope -> Envelope to the active controller -> take_answer: the client's response, an error, or again later
                                                        -> take_failure: again later; an error after TIMEOUT_MS

The controller checks the rights of the client; the broker itself needs only ClusterAction. Sans-io, not thread-safe.

Source: ForwardingManager and EnvelopeUtils of Kafka 4.3.
"""

from __future__ import annotations

import ipaddress
import struct

from tidelog.protocol import errors
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.messages.envelope import DefaultPrincipalData, EnvelopeRequest, EnvelopeResponse
from tidelog.protocol.types import Buffer

FORWARDED = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.UPDATE_FEATURES,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
    }
)
"""APIs that the active controller answers. A request that changes only levels of loggers is not forwarded."""
TIMEOUT_MS = 30_000.0
"""Time in ms after a request's arrival from which a failure ends it: the default of ``request.timeout.ms``, which
Kafka's clients have as well."""
FIRST_BACKOFF_MS = 50.0
MAX_BACKOFF_MS = 1000.0
_PRINCIPAL_VERSION = struct.pack(">h", 0)


class ForwardedRequest:
    """One forwarded request. ``response`` is set when it is answered, ``error`` when it cannot be answered."""

    __slots__ = ("_backoff_ms", "_deadline_ms", "envelope", "error", "not_before_ms", "response")

    def __init__(self, envelope: EnvelopeRequest, now_ms: float) -> None:
        self.envelope = envelope
        self.response: bytes | None = None
        self.error: errors.KafkaError | None = None
        self.not_before_ms = now_ms
        self._deadline_ms = now_ms + TIMEOUT_MS
        self._backoff_ms = FIRST_BACKOFF_MS

    @property
    def is_settled(self) -> bool:
        """True once there is a response or an error."""
        return self.response is not None or self.error is not None

    def take_answer(self, answer: EnvelopeResponse, now_ms: float) -> None:
        """Take a controller's answer."""
        if answer.error_code == errors.NotControllerError.code:
            self.take_failure(now_ms)
        elif answer.error_code == errors.ClusterAuthorizationFailedError.code:
            self.error = errors.UnknownServerError(
                "this broker may not forward requests: the controller denies its principal ClusterAction"
            )
        elif answer.error_code:
            self.error = errors.error_for_code(answer.error_code)()
        elif answer.response_data is None:
            self.error = errors.UnknownServerError()
        else:
            self.response = bytes(answer.response_data)

    def take_failure(self, now_ms: float) -> None:
        """Note that the active controller did not answer: ask again later, or end with an error after TIMEOUT_MS."""
        if now_ms >= self._deadline_ms:
            self.error = errors.RequestTimedOutError("the active controller did not answer in time")
            return
        self.not_before_ms = min(now_ms + self._backoff_ms, self._deadline_ms)
        self._backoff_ms = min(2 * self._backoff_ms, MAX_BACKOFF_MS)


def build_envelope(request: Buffer, principal: DefaultPrincipalData, client_host: str) -> EnvelopeRequest:
    """Return an Envelope around a client's request, header included."""
    return EnvelopeRequest(
        request_data=bytes(request),
        request_principal=_PRINCIPAL_VERSION + principal.encode(0),
        client_host_address=ipaddress.ip_address(client_host.partition("%")[0]).packed,
    )
