"""Queues of what this broker asks share coordinators on other brokers, and on itself (Kafka's PersisterStateManager).

    ask -> next_batch: calls of one API and group for one coordinator -> take_results: answers, refusals, again later
                                                                      -> take_failure: again later

Calls about one share partition go one after the other, in their order; changes that wait become one. A coordinator that
moved, loads or does not answer is asked again, wherever it is then, until the time is over. When a change is refused,
the changes that wait after it are refused with it: they were worked out upon it. A state that several members ask for
at once is made once: the second time would undo what the first one's member has done. A callback may ask again, so
callbacks are called when the queues hold the present state. Sans-io; loop thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tidelog.broker.coordinator.share_state.calls import CALLS, build_request, write_partition, written_of
from tidelog.broker.coordinator.share_state.spans import overlay
from tidelog.broker.coordinator.share_state.state import UNCHANGED_OFFSET, ShareState, StateKey, Written
from tidelog.broker.loop.deferred import Deferred
from tidelog.protocol import errors
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.messages.initialize_share_group_state import PartitionData as InitializePartition
from tidelog.protocol.messages.write_share_group_state import PartitionData as WritePartition
from tidelog.protocol.schema.fields import Message, Struct

TIMEOUT_MS = 20_000.0
"""Time after which a call fails. Clients wait 30 s for the answers that rest on it (``request.timeout.ms``)."""
FIRST_BACKOFF_MS = 50.0
MAX_BACKOFF_MS = 1000.0
MAX_CALLS = 1000
"""Most share partitions in one request."""
MAX_READS = 100
"""Most share partitions in one read: an answer with more elements than 2^20 is not decoded here, and this one has
``MOST_BATCHES_OF_ONE`` of each at the most."""
MAX_BATCHES = 40_000
"""Most state batches in one request: with more elements than 50,000 a broker does not take it."""
MOST_BATCHES_OF_ONE = 10_000
"""Of a share partition: it has no more records in flight (``group.share.max.partition.max.record.locks``)."""
WRITE = ApiKey.WRITE_SHARE_GROUP_STATE

AGAIN = (
    errors.CoordinatorLoadInProgressError,
    errors.CoordinatorNotAvailableError,
    errors.NotCoordinatorError,
)
Outcome = ShareState | errors.KafkaError | None


class QueuedCall:
    """One call, and those who wait for it."""

    __slots__ = ("answers", "api", "asked", "backoff_ms", "deadline_ms", "not_before_ms")

    def __init__(self, api: ApiKey, asked: Struct, now_ms: float) -> None:
        self.api = api
        self.asked = asked
        self.answers: list[Deferred[Any]] = [Deferred()]
        self.not_before_ms = now_ms
        self.deadline_ms = now_ms + TIMEOUT_MS
        self.backoff_ms = FIRST_BACKOFF_MS

    def settle(self, outcome: Outcome) -> None:
        """Tell those who wait."""
        for answer in self.answers:
            if answer.abandoned:
                continue
            if isinstance(outcome, errors.KafkaError):
                answer.fail(outcome)
            else:
                answer.complete(outcome)


Ended = tuple[QueuedCall, Outcome]
"""A call, and what those who wait for it are told."""


class Batch(NamedTuple):
    """Calls that go in one request."""

    node_id: int
    api: ApiKey
    group_id: str
    calls: Mapping[StateKey, QueuedCall]

    @property
    def request(self) -> Message:
        """The request for all of them."""
        return build_request(self.api, self.group_id, ((key, call.asked) for key, call in self.calls.items()))

    @property
    def response_type(self) -> type[Any]:
        """The type of its answer."""
        return CALLS[self.api].response


class ShareStatePersister:
    """Calls that are under way or wait, by share partition."""

    def __init__(self, coordinator_of: Callable[[StateKey], int | None]) -> None:
        """``coordinator_of`` names the broker that leads the partition of a state; None while there is none."""
        self._coordinator_of = coordinator_of
        self._queues: dict[StateKey, deque[QueuedCall]] = {}
        self._under_way: set[StateKey] = set()
        self._busy: set[int] = set()

    def ask(self, api: ApiKey, key: StateKey, asked: Struct, now_ms: float) -> Deferred[Any]:
        """Queue a call; settles with a state or nothing, or with the KafkaError of the coordinator."""
        call = QueuedCall(api, asked, now_ms)
        self._queues.setdefault(key, deque()).append(call)
        return call.answers[0]

    def next_batch(self, now_ms: float) -> Batch | None:
        """Return calls to make now, None while there are none for a coordinator that is not being asked."""
        ended: list[Ended] = []
        found = self._gather(now_ms, ended)
        if found is not None:
            self._busy.add(found.node_id)
            self._under_way.update(found.calls)
        settle_all(ended)
        return found

    def _gather(self, now_ms: float, ended: list[Ended]) -> Batch | None:
        """Return the calls of the next request; those whose time is over go to ``ended``."""
        found: Batch | None = None
        calls: dict[StateKey, QueuedCall] = {}
        left = MAX_BATCHES
        for key, queue in list(self._queues.items()):
            if key in self._under_way or queue[0].not_before_ms > now_ms:
                continue
            node_id = self._coordinator_of(key)
            if node_id is None:
                ended += self._ask_again(key, errors.CoordinatorNotAvailableError(), now_ms)
            elif node_id in self._busy or (found is not None and found[:3] != (node_id, queue[0].api, key.group_id)):
                continue
            else:
                found = found or Batch(node_id, queue[0].api, key.group_id, calls)
                calls[key] = join_changes(key, queue)
                left -= batch_count(calls[key].asked)
                if left < MOST_BATCHES_OF_ONE or len(calls) == most_calls(found.api):
                    break
        return found

    def wake_ms(self, now_ms: float) -> float | None:
        """Return the next time at which a call is made again, None where none waits for one."""
        waiting = (queue[0].not_before_ms for key, queue in self._queues.items() if key not in self._under_way)
        return min((time_ms for time_ms in waiting if time_ms > now_ms), default=None)

    def take_failure(self, batch: Batch, reason: str, now_ms: float) -> None:
        """Note that a coordinator did not answer."""
        error = errors.CoordinatorNotAvailableError(reason)
        self.take_results(batch, dict.fromkeys(batch.calls, error), now_ms)

    def take_results(self, batch: Batch, results: Mapping[StateKey, Outcome], now_ms: float) -> None:
        """Take the results of a batch."""
        self._busy.discard(batch.node_id)
        self._under_way.difference_update(batch.calls)
        ended: list[Ended] = []
        for key in batch.calls:
            outcome = results.get(key, errors.UnknownServerError("the share coordinator left a partition out"))
            if isinstance(outcome, AGAIN):
                ended += self._ask_again(key, outcome, now_ms)
            else:
                ended += self._end(key, outcome)
        settle_all(ended)

    def _ask_again(self, key: StateKey, error: errors.KafkaError, now_ms: float) -> list[Ended]:
        """Have a call wait; return it, and those that it decides, where its time is over."""
        call = self._queues[key][0]
        if now_ms >= call.deadline_ms:
            return self._end(key, error)
        call.not_before_ms = min(now_ms + call.backoff_ms, call.deadline_ms)
        call.backoff_ms = min(2 * call.backoff_ms, MAX_BACKOFF_MS)
        return []

    def _end(self, key: StateKey, outcome: Outcome) -> list[Ended]:
        """Take a call out of its queue, with those that it decides; return them."""
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


def settle_all(ended: Iterable[Ended]) -> None:
    """Tell those who wait for these calls."""
    for call, outcome in ended:
        call.settle(outcome)


def is_creation(asked: Struct) -> bool:
    """Return whether a state is to be made without a start offset, as heartbeats of the group's members ask."""
    return isinstance(asked, InitializePartition) and asked.start_offset < 0


def most_calls(api: ApiKey) -> int:
    """Return the most share partitions in one request of an API."""
    return MAX_READS if api is ApiKey.READ_SHARE_GROUP_STATE else MAX_CALLS


def batch_count(asked: Struct) -> int:
    """Return the number of state batches in a part of a request."""
    return len(asked.state_batches) if isinstance(asked, WritePartition) else 0


def join_changes(key: StateKey, queue: deque[QueuedCall]) -> QueuedCall:
    """Return the first call of a queue, with the changes by the same leader that wait right after it."""
    first = queue[0]
    while len(queue) > 1:
        whole, change = first.asked, queue[1].asked
        if not (isinstance(whole, WritePartition) and isinstance(change, WritePartition)):
            break
        if epochs_of(whole) != epochs_of(change):
            break
        first.asked = write_partition(key, join_written(written_of(whole), written_of(change)))
        first.answers += queue[1].answers
        del queue[1]
    return first


def epochs_of(asked: WritePartition) -> tuple[int, int]:
    """Return the epochs by which a change may be fenced."""
    return asked.leader_epoch, asked.state_epoch


def join_written(earlier: Written, later: Written) -> Written:
    """Return two changes as one, the later over the earlier."""
    start_offset = earlier.start_offset if later.start_offset == UNCHANGED_OFFSET else later.start_offset
    spans = overlay(list(earlier.batches), later.batches)
    return later._replace(start_offset=start_offset, batches=[one for one in spans if one.last >= start_offset])
