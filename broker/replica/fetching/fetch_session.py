# cython: wraparound=True, boundscheck=True
"""Fetch sessions (KIP-227): the broker remembers which partitions a client fetches, so requests name only what changed.

    session id, epoch of the request          meaning
    any, -1 (FINAL_EPOCH)                      full fetch without a session; closes the session it names
    any,  0 (INITIAL_EPOCH)                    full fetch that asks for a session; closes the session it names
    id,   n > 0                                incremental: partitions added, changed and forgotten
    id,   n > 0, not known                     FETCH_SESSION_ID_NOT_FOUND
    id,   n > 0, another epoch                 INVALID_FETCH_SESSION_EPOCH
    session of topic ids, request of names          FETCH_SESSION_TOPIC_ID_ERROR (and the other way round)

An incremental response may omit a partition without records and error if the client knows its offsets. Partitions that
returned records go to the end of the session's order, so that a small response limit starves none (KIP-74).

The cache is bounded. A full cache makes room for a new session by dropping one unused for EVICTION_MS, else one with
fewer partitions that is older than EVICTION_MS; otherwise the new client gets no session, and has to send longer
requests. Loop thread only; times are those of the monotonic clock. ``fetch_session.pxd`` declares the C types. Source:
KIP-227, Kafka's FetchSession.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidelog.protocol.errors import (
    FetchSessionIdNotFoundError,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpochError,
)
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, PartitionData
from tidelog.protocol.types import ZERO_UUID, Random

INVALID_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EVICTION_MS = 120_000
"""Kafka's MinIncrementalFetchSessionEvictionMs."""
_MAX_EPOCH = 2**31 - 1
_FIRST_VERSION_WITH_IDS = 13

Key = tuple[str | bytes, int]


class FetchTarget:
    """A partition that a client fetches: its request, and the offsets in the last response."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "rested_until_ms",
        "sent_epoch",
        "sent_high_watermark",
        "sent_log_start_offset",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: bytes, asked: FetchPartition) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = asked.partition
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1
        self.sent_epoch = 0  # the session's epoch when these offsets were noted
        self.rested_until_ms: float | None = None
        """Time of the last request before one that named or forgot the partition: until then it rested
        (``replication.resting``)."""
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.partition_max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.log_start_offset = asked.log_start_offset

    def update(self, asked: FetchPartition) -> None:
        """Take over the values of a later request of the session."""
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.partition_max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.log_start_offset = asked.log_start_offset

    @property
    def key(self) -> Key:
        """Key of the partition in its session."""
        return (self.topic_id if self.topic_id != ZERO_UUID else self.topic, self.index)


Result = tuple[FetchTarget, PartitionData]


class FetchSession:
    """Partitions that one client fetches. ``epoch`` is the one that its next request must have."""

    __slots__ = (
        "active",
        "active_since_ms",
        "created_ms",
        "epoch",
        "is_woken",
        "last_used_ms",
        "session_id",
        "targets",
        "uses_topic_ids",
    )

    def __init__(self, session_id: int, targets: Iterable[FetchTarget], *, uses_topic_ids: bool, now_ms: float) -> None:
        self.session_id = session_id
        self.targets: dict[Key, FetchTarget] = {target.key: target for target in targets}
        self.uses_topic_ids = uses_topic_ids
        self.created_ms = self.last_used_ms = now_ms
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.active: dict[Key, FetchTarget] | None = None
        """Partitions that a follower's fetch reads while the others rest; None: all, as for consumers."""
        self.active_since_ms = now_ms
        """Monotonic time at which all partitions were last active."""
        self.is_woken = False
        """True from the end of a partition's rest until the next fetch of the session waits."""

    def update(self, request: FetchRequest) -> None:
        """Add, change and forget the partitions that an incremental request names."""
        for topic in request.topics:
            self.put(topic, topic.partitions)
        for forgotten in request.forgotten_topics_data:
            self.forget(forgotten, forgotten.partitions)

    def put(self, topic: FetchTopic, partitions: Iterable[FetchPartition]) -> None:
        """Add or change these partitions of a topic."""
        targets = self.targets
        name = topic.topic_id if self.uses_topic_ids else topic.topic
        for asked in partitions:
            target = targets.get((name, asked.partition))
            if target is None:
                target = targets[name, asked.partition] = FetchTarget(topic.topic, topic.topic_id, asked)
            target.update(asked)
            if self.active is not None:
                target.rested_until_ms = self.last_used_ms
                self.active[name, asked.partition] = target

    def forget(self, topic: ForgottenTopic, partitions: Iterable[int]) -> None:
        """Forget these partitions of a topic."""
        name = topic.topic_id if self.uses_topic_ids else topic.topic
        for index in partitions:
            target = self.targets.pop((name, index), None)
            if self.active is not None and target is not None:
                target.rested_until_ms = self.last_used_ms
                self.active.pop((name, index), None)

    def wake(self, target: FetchTarget) -> None:
        """Make a resting partition active, if it is still in the session."""
        if self.active is not None and self.targets.get(target.key) is target:
            self.active[target.key] = target
            self.is_woken = True

    def activate_all(self) -> dict[Key, FetchTarget]:
        """Make all partitions active; return them, so that the caller can remove those that may rest."""
        self.active = dict(self.targets)
        self.active_since_ms = self.last_used_ms
        return self.active


class FetchContext:
    """One fetch: the partitions to read, and the session that notes its results.

    The response to a full fetch has all partitions; with ``is_incremental`` the unchanged ones need no result.
    """

    __slots__ = ("_cache", "_wants_session", "is_incremental", "session", "targets", "uses_topic_ids")

    def __init__(
        self,
        cache: FetchSessionCache,
        targets: list[FetchTarget],
        *,
        session: FetchSession | None = None,
        wants_session: bool = False,
        uses_topic_ids: bool = False,
    ) -> None:
        self._cache = cache
        self.session = session
        self._wants_session = wants_session
        self.targets = targets
        self.is_incremental = session is not None
        self.uses_topic_ids = uses_topic_ids

    @property
    def active(self) -> list[FetchTarget]:
        """Partitions that a follower's fetch reads: those that do not rest."""
        session = self.session
        return self.targets if session is None or session.active is None else list(session.active.values())

    def finish(self, results: list[Result]) -> int:
        """Note the results of the whole response. Returns the session id for the response."""
        if self.session is None and not self._wants_session:
            return INVALID_SESSION_ID
        session_id = self.begin_session()
        self.note(results)
        return session_id

    def begin_session(self) -> int:
        """Create the session if one is wanted. Returns its id for the response."""
        if self.session is None and self._wants_session:
            self.session = self._cache.create(self.targets, uses_topic_ids=self.uses_topic_ids)
        return INVALID_SESSION_ID if self.session is None else self.session.session_id

    def note(self, results: list[Result]) -> None:
        """Note the results of some partitions: they are sent now."""
        if self.session is None:
            return
        targets, active, epoch = self.session.targets, self.session.active, self.session.epoch
        for target, data in results:
            if data.error_code:
                target.sent_high_watermark = -1  # so that the partition is sent again once the error is gone
                continue
            target.sent_high_watermark = data.high_watermark
            target.sent_log_start_offset = data.log_start_offset
            target.sent_epoch = epoch
            if data.records and targets.pop(target.key, None) is not None:
                targets[target.key] = target
                if active is not None and active.pop(target.key, None) is not None:
                    active[target.key] = target


class FetchSessionCache:
    """Fetch sessions of a broker, the longest unused first."""

    __slots__ = ("_max_slots", "_monotonic_ms", "_random", "evictions_total", "sessions")

    def __init__(self, max_slots: int, monotonic_ms: Callable[[], float], random: Random) -> None:
        self._max_slots = max_slots
        self._monotonic_ms = monotonic_ms
        self._random = random
        self.sessions: dict[int, FetchSession] = {}
        self.evictions_total = 0

    def context_for(self, version: int, request: FetchRequest) -> FetchContext:
        """Return the context with the partitions that this request reads.

        Raises FetchSessionIdNotFoundError, InvalidFetchSessionEpochError, FetchSessionTopicIdError.
        """
        session = self.find(version, request)
        if session is None:
            return self.full_context(version, request, full_targets(request))
        session.update(request)
        return self.follow(session)

    def full_context(self, version: int, request: FetchRequest, targets: list[FetchTarget]) -> FetchContext:
        """Return the context of a full fetch of ``targets``."""
        return FetchContext(
            self,
            targets,
            wants_session=request.session_epoch == INITIAL_EPOCH,
            uses_topic_ids=version >= _FIRST_VERSION_WITH_IDS,
        )

    def find(self, version: int, request: FetchRequest) -> FetchSession | None:
        """Return the session that a request continues; None for a full fetch, which closes the session it names.

        Raises as ``context_for``.
        """
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.sessions.pop(request.session_id, None)
            return None
        session = self.sessions.get(request.session_id)
        if session is None:
            raise FetchSessionIdNotFoundError
        if session.epoch != request.session_epoch:
            raise InvalidFetchSessionEpochError
        if session.uses_topic_ids != (version >= _FIRST_VERSION_WITH_IDS):
            raise FetchSessionTopicIdError
        return session

    def follow(self, session: FetchSession) -> FetchContext:
        """Return the context of an incremental fetch, once ``session`` has its changes."""
        if not session.targets:
            del self.sessions[session.session_id]
            return FetchContext(self, [], uses_topic_ids=session.uses_topic_ids)
        self.note_use(session)
        session.epoch = next_epoch(session.epoch)
        targets = list(session.targets.values())
        return FetchContext(self, targets, session=session, uses_topic_ids=session.uses_topic_ids)

    def note_use(self, session: FetchSession) -> None:
        """Note that a session was used, and move it after all others: the longest unused stays the first."""
        session.last_used_ms = self._monotonic_ms()
        self.sessions[session.session_id] = self.sessions.pop(session.session_id)

    def create(self, targets: list[FetchTarget], *, uses_topic_ids: bool) -> FetchSession | None:
        """Create a session of ``targets``; return None when there are none, or no room for it."""
        now = self._monotonic_ms()
        if not targets or (len(self.sessions) >= self._max_slots and not self._evict(len(targets), now)):
            return None
        session_id = self._random.getrandbits(31)
        while session_id == 0 or session_id in self.sessions:
            session_id = self._random.getrandbits(31)
        session = FetchSession(session_id, targets, uses_topic_ids=uses_topic_ids, now_ms=now)
        self.sessions[session_id] = session
        return session

    def take_back(self, session_id: int) -> None:
        """Forget the offsets that a session has noted for its last response, which is not sent: the next one has
        them."""
        session = self.sessions.get(session_id)
        if session is not None:
            for target in session.targets.values():
                if target.sent_epoch == session.epoch:
                    target.sent_high_watermark = -1

    def remove(self, session_id: int) -> None:
        """Remove a session, if there is one of that id."""
        self.sessions.pop(session_id, None)

    def partition_count(self) -> int:
        """Count the partitions of all sessions; a gauge."""
        return sum(len(session.targets) for session in self.sessions.values())

    def _evict(self, size: int, now: float) -> bool:
        """Drop a session that is worth less than a new one of ``size`` partitions; return whether there was one."""
        oldest = next(iter(self.sessions.values()), None)
        if oldest is None:
            return False
        victim = oldest if now - oldest.last_used_ms > EVICTION_MS else None
        if victim is None:
            settled = (session for session in self.sessions.values() if now - session.created_ms > EVICTION_MS)
            victim = min(settled, key=lambda session: len(session.targets), default=None)
            if victim is None or len(victim.targets) >= size:
                return False
        del self.sessions[victim.session_id]
        self.evictions_total += 1
        return True


def next_epoch(epoch: int) -> int:
    """Return the epoch after ``epoch``: 1 follows the largest, because 0 would begin a new session."""
    return 1 if epoch == _MAX_EPOCH else epoch + 1


def full_targets(request: FetchRequest) -> list[FetchTarget]:
    """List the partitions that a full fetch names, each once, in the order of the request."""
    topics = request.topics
    if len(topics) == 1 and len(topics[0].partitions) == 1:
        return [FetchTarget(topics[0].topic, topics[0].topic_id, topics[0].partitions[0])]
    targets = [FetchTarget(topic.topic, topic.topic_id, asked) for topic in topics for asked in topic.partitions]
    return list({target.key: target for target in targets}.values())
