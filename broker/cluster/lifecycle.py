"""Lifecycle of a broker in a cluster: it registers with the active controller, then asks for state changes by
heartbeats.

    NOT_RUNNING -> STARTING   the controller has accepted BrokerRegistration; heartbeats follow every 10 ms
                -> RECOVERY   the controller says caught up, and the image has this process's registration
                -> RUNNING    logs and roles are ready (``become_ready``), and the controller says unfenced
                -> PENDING_CONTROLLED_SHUTDOWN   ``begin_shutdown``; the controller moves leaders away
                -> SHUTTING_DOWN   the controller says so; before RECOVERY at ``begin_shutdown``

At most one request is in flight; ``next_question`` returns it. A lost answer does no harm: the next registration or
heartbeat says the same. Sans-io, not thread-safe.

Source: BrokerLifecycleManager of Kafka 4.3; KIP-631, KIP-858, KIP-966, KIP-1066.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from tidelog.broker.metadata.metadata_image import BrokerRegistration, Endpoint, MetadataImage
from tidelog.protocol import errors
from tidelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from tidelog.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)

CATCH_UP_INTERVAL_MS = 10
REGISTRATION_RETRY_MS = 500
"""Wait in ms after an error. Kafka answers DUPLICATE_BROKER_REGISTRATION until the session of the last process
of this broker is over, after 9 s by default.
"""
SHUTDOWN_INTERVAL_MS = 50
FIRST_BACKOFF_MS = 50
UNKNOWN_EPOCH = -1

_REFUSALS = (
    errors.ClusterAuthorizationFailedError,
    errors.InconsistentClusterIdError,
    errors.InvalidRegistrationError,
    errors.InvalidRequestError,
    errors.UnsupportedVersionError,
)
"""Errors of a registration after which a retry is useless."""


class LifecycleError(Exception):
    """The cluster refuses or has unregistered this broker, or another process has registered with its id."""


class BrokerState(IntEnum):
    """State of a broker, with Kafka's numbers (BrokerState)."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class Registration(NamedTuple):
    """Content of a broker's registration. ``previous_epoch`` is its broker epoch at the last clean stop, -1 without
    one.
    """

    broker_id: int
    cluster_id: str
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, tuple[int, int]]
    rack: str | None
    directories: tuple[bytes, ...]
    previous_epoch: int = UNKNOWN_EPOCH


class LifecycleQuestion(NamedTuple):
    """A request to the active controller, and the earliest time for it."""

    request: BrokerRegistrationRequest | BrokerHeartbeatRequest
    not_before_ms: float


class BrokerLifecycle:
    """State, epoch and next request of one broker process."""

    def __init__(self, registration: Registration, heartbeat_interval_ms: float) -> None:
        self.state = BrokerState.NOT_RUNNING
        self.broker_epoch = UNKNOWN_EPOCH
        self.is_fenced = True
        """True until the controller unfences this broker, and after it has fenced the broker again."""
        self.last_failure = ""
        """The reason why the last request failed, as text for log lines; empty after one that succeeded."""
        self._registration = registration
        self._interval_ms = heartbeat_interval_ms
        self._not_before_ms = 0.0
        self._backoff_ms: float = FIRST_BACKOFF_MS
        self._image_offset = -1
        self._own: BrokerRegistration | None = None
        """The registration with this broker's id in the newest image."""
        self._is_ready = False
        self._is_first_shutdown_answer = True
        self._has_news = False
        """True if something has changed that the request in flight does not report: the next one follows at once."""
        self._unconfirmed: dict[bytes, float] = {}
        """Failed directories that no controller has confirmed yet, with the time (ms) of the failure."""
        self._offline: dict[bytes, None] = {}
        """All failed directories, in the order of their failures."""
        self._cordoned: frozenset[bytes] | None = None
        """Cordoned directories (``broker/config/cordoned.py``). None until ``note_cordoned``, which comes after the
        catch-up, as in Kafka: the dynamic configs in the metadata say which they are."""
        self._reported: frozenset[bytes] = frozenset()
        """The failed directories that the heartbeat in flight reports."""

    @property
    def wants_fence(self) -> bool:
        """True while this broker must stay fenced: it cannot lead partitions, and clients must not see it."""
        return not self._is_ready

    @property
    def _holds_own_registration(self) -> bool:
        """True once the image has the registration of this process, not of an earlier one."""
        own = self._own
        return (
            own is not None
            and own.broker_epoch == self.broker_epoch
            and own.incarnation_id == self._registration.incarnation_id
        )

    def is_at_least(self, state: BrokerState) -> bool:
        """Return whether this broker is in ``state`` or a later one."""
        return self.state >= state

    def next_question(self) -> LifecycleQuestion:
        """Return the next request to send."""
        is_registered = self.state is not BrokerState.NOT_RUNNING
        self._has_news = False
        return LifecycleQuestion(self._heartbeat() if is_registered else self._register(), self._not_before_ms)

    # ---- facts about this broker

    def take_image(self, image: MetadataImage) -> None:
        """Note the image that was published last."""
        self._image_offset = image.offset
        self._own = image.brokers.get(self._registration.broker_id)

    def become_ready(self, now_ms: float) -> None:
        """Ask to be unfenced, at once: the logs are recovered, and this broker has taken its roles in partitions."""
        self._is_ready = self._has_news = True
        self._not_before_ms = now_ms

    def begin_shutdown(self, now_ms: float) -> None:
        """Ask for a controlled shutdown, at once. Before RECOVERY there are no leaders to move: then go to
        SHUTTING_DOWN.
        """
        if self.state in (BrokerState.RECOVERY, BrokerState.RUNNING):
            self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
            self._has_news = True
            self._not_before_ms = now_ms
        elif self.state is not BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            self.state = BrokerState.SHUTTING_DOWN

    def note_offline(self, directory_id: bytes, now_ms: float) -> None:
        """Report at once to the controller that a log directory failed; it stays failed until this process ends."""
        if directory_id not in self._offline:
            self._offline[directory_id] = None
            self._unconfirmed[directory_id] = now_ms
            self._not_before_ms = min(self._not_before_ms, now_ms)

    def note_cordoned(self, directory_ids: frozenset[bytes], now_ms: float) -> None:
        """Report the cordoned directories to the controller (KIP-1066): a change at once, the first ones with the next
        heartbeat.
        """
        if self._cordoned is not None and directory_ids != self._cordoned:
            self._has_news = True
            self._not_before_ms = min(self._not_before_ms, now_ms)
        self._cordoned = directory_ids

    def has_unconfirmed_failure(self, before_ms: float) -> bool:
        """Return whether a directory failed before this time and no controller has confirmed that yet."""
        return any(failed_ms < before_ms for failed_ms in self._unconfirmed.values())

    # ---- answers of the controller

    def take_failure(self, reason: str, now_ms: float) -> None:
        """Note that the active controller did not answer."""
        self.last_failure = reason
        self._not_before_ms = now_ms + self._backoff_ms
        self._backoff_ms = min(2 * self._backoff_ms, self._interval_ms)

    def take_answer(self, response: BrokerRegistrationResponse | BrokerHeartbeatResponse, now_ms: float) -> None:
        """Take the active controller's answer to the last question.

        Raises LifecycleError where it refuses this broker for good.
        """
        if response.error_code == errors.NotControllerError.code:
            self.take_failure("the controller that was asked is not the active one", now_ms)
        elif isinstance(response, BrokerRegistrationResponse):
            self._take_registration(response, now_ms)
        else:
            self._take_heartbeat(response, now_ms)

    def _take_registration(self, response: BrokerRegistrationResponse, now_ms: float) -> None:
        if self.state is not BrokerState.NOT_RUNNING:
            return  # the shutdown began meanwhile
        if response.error_code:
            self._note_error("registration", response.error_code, now_ms + REGISTRATION_RETRY_MS)
            if errors.error_for_code(response.error_code) in _REFUSALS:
                raise LifecycleError(self.last_failure)
            return
        self.state = BrokerState.STARTING
        self.broker_epoch = response.broker_epoch
        self._note_success(now_ms)

    def _take_heartbeat(self, response: BrokerHeartbeatResponse, now_ms: float) -> None:
        if response.error_code:
            self._note_error("heartbeat", response.error_code, now_ms + self._interval_ms)
            if response.error_code == errors.StaleBrokerEpochError.code:
                raise LifecycleError(
                    f"another process has registered as broker {self._registration.broker_id}, or the broker was"
                    " unregistered: this process stops"
                )
            return
        self.is_fenced = response.is_fenced
        for directory_id in self._reported:
            self._unconfirmed.pop(directory_id, None)
        wait_ms = self._advance(response)
        self._note_success(now_ms if self._has_news else now_ms + wait_ms)

    def _advance(self, response: BrokerHeartbeatResponse) -> float:
        """Take the step that a good heartbeat allows; return the time until the next heartbeat, in ms."""
        if self.state is BrokerState.STARTING:
            if not (response.is_caught_up and self._holds_own_registration):
                return CATCH_UP_INTERVAL_MS
            self.state = BrokerState.RECOVERY
            return 0
        if self.state is BrokerState.RECOVERY and self._is_ready and not response.is_fenced:
            self.state = BrokerState.RUNNING
        elif self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            if response.should_shut_down:
                self.state = BrokerState.SHUTTING_DOWN
            elif self._is_first_shutdown_answer and not self._has_news:
                self._is_first_shutdown_answer = False
                return SHUTDOWN_INTERVAL_MS
        return self._interval_ms

    def _note_success(self, next_ms: float) -> None:
        self.last_failure = ""
        self._backoff_ms = FIRST_BACKOFF_MS
        self._not_before_ms = min([next_ms, *self._unconfirmed.values()])  # newly failed directories at once

    def _note_error(self, what: str, code: int, next_ms: float) -> None:
        error = errors.error_for_code(code)
        name = error.__name__.removesuffix("Error")
        self.last_failure = f"the controller answers {name} ({code}) to the {what}: {error.default_message}"
        self._not_before_ms = next_ms

    # ---- messages

    def _register(self) -> BrokerRegistrationRequest:
        registration = self._registration
        return BrokerRegistrationRequest(
            broker_id=registration.broker_id,
            cluster_id=registration.cluster_id,
            incarnation_id=registration.incarnation_id,
            listeners=[
                Listener(name=one.name, host=one.host, port=one.port, security_protocol=one.security_protocol)
                for one in registration.endpoints
            ],
            features=[
                Feature(name=name, min_supported_version=lowest, max_supported_version=highest)
                for name, (lowest, highest) in registration.features.items()
            ],
            rack=registration.rack,
            log_dirs=sorted(registration.directories),
            previous_broker_epoch=registration.previous_epoch,
        )

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        self._reported = frozenset(self._offline)
        return BrokerHeartbeatRequest(
            broker_id=self._registration.broker_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._image_offset,
            want_fence=self.wants_fence,
            want_shut_down=self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            offline_log_dirs=sorted(self._offline),
            cordoned_log_dirs=None if self._cordoned is None else sorted(self._cordoned),
        )
