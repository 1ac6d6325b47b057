"""Queues of calls to share coordinators, on other brokers and on this one (Kafka's PersisterStateManager).

    ask -> next_batch: calls of one API and group for one coordinator -> take_results: results, errors, retries
                                                                      -> take_failure: retries

A share partition is one partition of a topic, as one share group reads it. Its calls are made one after the other, in
their order; of changes that wait, consecutive ones with the same epochs are merged into one call. If a coordinator has
moved, is loading or does not answer, the call is repeated to the broker that is the coordinator by then, until the
call's deadline. If a change fails, the changes that wait directly after it fail too, because they depend on it. If the
heartbeats of several members ask for the same new state, one call creates it. If that call succeeds, the same calls
that wait directly after it are answered without being sent. Callbacks may add calls, so they run only when the queues
are consistent. Sans-io; loop thread only.

A *state batch* is a range of offsets with its delivery state, as in Kafka's messages (here a ``Span``). A
:class:`CallBatch` is a batch of calls: those of one request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tidelog.broker.coordinator.share_state.calls import CALLS, build_request, build_write_data, written_of
from tidelog.broker.coordinator.share_state.spans import merge
from tidelog.broker.coordinator.share_state.state import ShareState, StateKey, StateUpdate
from tidelog.broker.loop.deferred import Deferred
from tidelog.protocol import errors
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.messages.initialize_share_group_state import PartitionData as InitializePartition
from tidelog.protocol.messages.write_share_group_state import PartitionData as WritePartition
from tidelog.protocol.schema.fields import Message, Struct

TIMEOUT_MS = 20_000.0
"""Time after which a call is not sent again, but fails. Clients wait 30 s (``request.timeout.ms``) for responses that
need calls."""
FIRST_BACKOFF_MS = 50.0
MAX_BACKOFF_MS = 1000.0
MAX_CALLS = 1000
"""Largest number of share partitions in one request."""
MAX_READS = 100
"""Largest number of share partitions in one read: responses with more than 2^20 elements are not decoded, and each
share partition has up to ``MAX_STATE_BATCHES_OF_ONE`` state batches."""
MAX_STATE_BATCHES = 40_000
"""Largest number of state batches in one request: brokers refuse requests with more than 50,000 elements. A request
gets no further call once it has room for fewer than MAX_STATE_BATCHES_OF_ONE."""
MAX_STATE_BATCHES_OF_ONE = 10_000
"""Largest number of state batches of one share partition: one for each record in flight, whose number
``group.share.max.partition.max.record.locks`` limits to 10,000 or less."""
WRITE = ApiKey.WRITE_SHARE_GROUP_STATE

REPEATABLE = (
    errors.CoordinatorLoadInProgressError,
    errors.CoordinatorNotAvailableError,
    errors.NotCoordinatorError,
)
"""Errors after which a call is repeated."""
Outcome = ShareState | errors.KafkaError | None
"""Result of a call: a state if it reads one, None if it was executed, or its error."""


class QueuedCall:
    """One call of ``api``, and the Deferreds that wait for its result. ``asked`` is its share partition's part of the
    request."""

    __slots__ = ("answers", "api", "asked", "backoff_ms", "deadline_ms", "not_before_ms")

    def __init__(self, api: ApiKey, asked: Struct, now_ms: float) -> None:
        self.api = api
        self.asked = asked
        self.answers: list[Deferred[Any]] = [Deferred()]
        self.not_before_ms = now_ms
        self.deadline_ms = now_ms + TIMEOUT_MS
        self.backoff_ms = FIRST_BACKOFF_MS

    def settle(self, outcome: Outcome) -> None:
        """Settle all Deferreds that wait for this call."""
        for answer in self.answers:
            if answer.abandoned:
                continue
            if isinstance(outcome, errors.KafkaError):
                answer.fail(outcome)
            else:
                answer.complete(outcome)


EndedCall = tuple[QueuedCall, Outcome]
"""A call, and its result or error."""


class CallBatch(NamedTuple):
    """Calls of one API and group that are sent to one broker in one request."""

    node_id: int
    api: ApiKey
    group_id: str
    calls: Mapping[StateKey, QueuedCall]

    @property
    def request(self) -> Message:
        """The request with all calls."""
        return build_request(self.api, self.group_id, ((key, call.asked) for key, call in self.calls.items()))

    @property
    def response_type(self) -> type[Any]:
        """The type of the response."""
        return CALLS[self.api].response


class ShareStatePersister:
    """Calls that are in progress or wait: a queue for each share partition."""

    def __init__(self, coordinator_of: Callable[[StateKey], int | None]) -> None:
        """``coordinator_of`` returns the id of the broker that leads the partition of a state, or None."""
        self._coordinator_of = coordinator_of
        self._queues: dict[StateKey, deque[QueuedCall]] = {}
        self._under_way: set[StateKey] = set()
        """Share partitions whose first call was sent and not answered."""
        self._busy: set[int] = set()
        """Ids of brokers that have not answered a request."""

    def ask(self, api: ApiKey, key: StateKey, asked: Struct, now_ms: float) -> Deferred[Any]:
        """Queue a call. The Deferred gets a state or None, or fails with a KafkaError."""
        call = QueuedCall(api, asked, now_ms)
        self._queues.setdefault(key, deque()).append(call)
        return call.answers[0]

    def next_batch(self, now_ms: float) -> CallBatch | None:
        """Return the next calls to send. Returns None if there are none, or if all wait: for a coordinator's answer to
        an earlier request, or for the time of their next try (``wake_ms``)."""
        ended: list[EndedCall] = []
        found = self._gather(now_ms, ended)
        if found is not None:
            self._busy.add(found.node_id)
            self._under_way.update(found.calls)
        settle_all(ended)
        return found

    def _gather(self, now_ms: float, ended: list[EndedCall]) -> CallBatch | None:
        """Return the calls of the next request. Calls that have no coordinator, and whose deadline has passed, are
        added to ``ended``."""
        found: CallBatch | None = None
        calls: dict[StateKey, QueuedCall] = {}
        left = MAX_STATE_BATCHES
        for key, queue in list(self._queues.items()):
            if key in self._under_way or queue[0].not_before_ms > now_ms:
                continue
            node_id = self._coordinator_of(key)
            if node_id is None:
                ended += self._ask_again(key, errors.CoordinatorNotAvailableError(), now_ms)
            elif node_id in self._busy or (found is not None and found[:3] != (node_id, queue[0].api, key.group_id)):
                continue
            else:
                found = found or CallBatch(node_id, queue[0].api, key.group_id, calls)
                calls[key] = merge_changes(key, queue)
                left -= count_state_batches(calls[key].asked)
                if left < MAX_STATE_BATCHES_OF_ONE or len(calls) == max_calls(found.api):
                    break
        return found

    def wake_ms(self, now_ms: float) -> float | None:
        """Return the next time at which a call is repeated, None if no call waits for that."""
        waiting = (queue[0].not_before_ms for key, queue in self._queues.items() if key not in self._under_way)
        return min((time_ms for time_ms in waiting if time_ms > now_ms), default=None)

    def take_failure(self, batch: CallBatch, reason: str, now_ms: float) -> None:
        """Note that a coordinator did not answer a batch: its calls are repeated."""
        error = errors.CoordinatorNotAvailableError(reason)
        self.take_results(batch, dict.fromkeys(batch.calls, error), now_ms)

    def take_results(self, batch: CallBatch, results: Mapping[StateKey, Outcome], now_ms: float) -> None:
        """Settle the calls of a batch by its results, or repeat them."""
        self._busy.discard(batch.node_id)
        self._under_way.difference_update(batch.calls)
        ended: list[EndedCall] = []
        for key in batch.calls:
            outcome = results.get(key, errors.UnknownServerError("the share coordinator's response lacks a partition"))
            if isinstance(outcome, REPEATABLE):
                ended += self._ask_again(key, outcome, now_ms)
            else:
                ended += self._end(key, outcome)
        settle_all(ended)

    def _ask_again(self, key: StateKey, error: errors.KafkaError, now_ms: float) -> list[EndedCall]:
        """Have the first call of a queue wait before it is repeated. If its deadline has passed, end the call. Returns
        the calls that ended."""
        call = self._queues[key][0]
        if now_ms >= call.deadline_ms:
            return self._end(key, error)
        call.not_before_ms = min(now_ms + call.backoff_ms, call.deadline_ms)
        call.backoff_ms = min(2 * call.backoff_ms, MAX_BACKOFF_MS)
        return []

    def _end(self, key: StateKey, outcome: Outcome) -> list[EndedCall]:
        """Remove the first call from its queue, and those that end with it: changes after a refused change, repeated
        creations after a creation. Returns them."""
        queue = self._queues[key]
        ended = [queue.popleft()]
        if ended[0].api is WRITE and isinstance(outcome, errors.KafkaError):
            while queue and queue[0].api is WRITE:
                ended.append(queue.popleft())
        elif outcome is None and is_creation(ended[0].asked):
            while queue and is_creation(queue[0].asked):
                ended.append(queue.popleft())
        if not queue:
            del self._queues[key]
        return [(call, outcome) for call in ended]


def settle_all(ended: Iterable[EndedCall]) -> None:
    """Settle these calls with their results or errors."""
    for call, outcome in ended:
        call.settle(outcome)


def is_creation(asked: Struct) -> bool:
    """Return whether a call creates a state without a start offset, as those of members' heartbeats do."""
    return isinstance(asked, InitializePartition) and asked.start_offset < 0


def max_calls(api: ApiKey) -> int:
    """Return the most share partitions in one request of an API."""
    return MAX_READS if api is ApiKey.READ_SHARE_GROUP_STATE else MAX_CALLS


def count_state_batches(asked: Struct) -> int:
    """Return the number of state batches in a part of a request."""
    return len(asked.state_batches) if isinstance(asked, WritePartition) else 0


def merge_changes(key: StateKey, queue: deque[QueuedCall]) -> QueuedCall:
    """Merge the changes that follow the first call of a queue directly into that call, while all are changes with the
    same epochs; return the call."""
    first = queue[0]
    while len(queue) > 1:
        earlier, later = first.asked, queue[1].asked
        if not (isinstance(earlier, WritePartition) and isinstance(later, WritePartition)):
            break
        if epochs_of(earlier) != epochs_of(later):
            break
        first.asked = build_write_data(key, merge_written(written_of(earlier), written_of(later)))
        first.answers += queue[1].answers
        del queue[1]
    return first


def epochs_of(asked: WritePartition) -> tuple[int, int]:
    """Return the leader epoch and the state epoch of a change, by which it may be fenced."""
    return asked.leader_epoch, asked.state_epoch


def merge_written(earlier: StateUpdate, later: StateUpdate) -> StateUpdate:
    """Merge two changes of one state into one. For offsets that both change, ``merge`` selects the record state."""
    start_offset = max(earlier.start_offset, later.start_offset)
    spans = merge(list(earlier.batches), later.batches)
    return later._replace(start_offset=start_offset, batches=[one for one in spans if one.last >= start_offset])
