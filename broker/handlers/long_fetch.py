"""Fetch in steps, of many partitions, or of logs that must be opened or proved first: read, wait, read again, answer.

``tidelog.broker.handlers.fetch`` does the same in one turn for a few partitions that can be read now. A log is proved
when a thread has checked its transaction index. If there is too little to read, the fetch waits in the purgatory under
all its partitions. Once one of them has records or moves its offsets, all are read again, as in Kafka. They are read
again in steps, too, so that the append that causes this does not wait for it.
Slices that were read are released when the connection closes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import ITEMS_PER_STEP, Steps
from tidelog.broker.replica.fetching.fetch_session import FetchTarget
from tidelog.broker.replica.keys_wait import KeysWait
from tidelog.broker.replica.opening import opening_of
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.fetch import FetchResponse
from tidelog.protocol.schema.engine import blank

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.handlers.fetch import ReadParams, ReadResult
    from tidelog.broker.replica.fetching.fetch_session import FetchContext, FetchSessionCache, Key, Result
    from tidelog.broker.replica.partition import Partition
    from tidelog.broker.requests.context import RequestContext
    from tidelog.protocol.messages.fetch import FetchRequest

PER_STEP = 1
"""Partitions that are read in one step; each takes 20 µs."""

PROOF_WAIT_MS = 5_000
"""Longest wait of a request for a thread that checks a transaction index, if its ``max_wait_ms`` is shorter."""


def fetch_many(
    broker: Broker, context: RequestContext, request: FetchRequest
) -> Steps[FetchResponse | Deferred[FetchResponse]]:
    """Answer a request that names many partitions, as ``fetch.handle`` does."""
    from tidelog.broker.handlers.fetch import read_params

    fetch_context = yield from context_in_steps(broker.fetch_sessions, context.api_version, request)
    params = read_params(broker, context, request, fetch_context)
    return (yield from fetch_in_steps(broker, context, fetch_context, params, request.max_wait_ms))


def fetch_in_steps(
    broker: Broker, client: RequestContext, context: FetchContext, params: ReadParams, max_wait_ms: int
) -> Steps[FetchResponse | Deferred[FetchResponse]]:
    """Answer a fetch as ``fetch.handle`` does, once the logs of its partitions are open."""
    from tidelog.broker.handlers.fetch import LAST_VERSION_DOWN_CONVERTED, converted_response, with_endpoints

    yield from open_logs(broker, context)
    read = yield from read_until_enough(broker, context, params, max_wait_ms)
    broker.metrics.bytes_out.count += read.total_bytes
    if params.version <= LAST_VERSION_DOWN_CONVERTED and read.total_bytes:
        return converted_response(broker, context, params, read)
    response = yield from response_in_steps(context, read.results)
    return with_endpoints(broker, client, read, response)


def context_in_steps(cache: FetchSessionCache, version: int, request: FetchRequest) -> Steps[FetchContext]:
    """Run ``FetchSessionCache.context_for`` in steps and return its result. Raises what ``context_for`` raises."""
    session = cache.find(version, request)
    targets: dict[Key, FetchTarget] = {}
    for topic in request.topics:
        for first in range(0, len(topic.partitions), ITEMS_PER_STEP):
            partitions = topic.partitions[first : first + ITEMS_PER_STEP]
            if session is not None:
                session.put(topic, partitions)
            else:
                made = (FetchTarget(topic.topic, topic.topic_id, asked) for asked in partitions)
                targets.update((target.key, target) for target in made)
            yield None
    if session is None:
        return cache.full_context(version, request, list(targets.values()))
    for forgotten in request.forgotten_topics_data:
        for first in range(0, len(forgotten.partitions), ITEMS_PER_STEP):
            session.forget(forgotten, forgotten.partitions[first : first + ITEMS_PER_STEP])
            yield None
    cache.find(version, request)  # raises if the session was closed or advanced meanwhile
    return cache.follow(session)


def response_in_steps(context: FetchContext, results: list[Result]) -> Steps[FetchResponse]:
    """Run ``build_response`` in steps and return its result. Slices are released if the client disconnects."""
    from tidelog.broker.handlers.fetch import add_results, release_results

    response = blank(FetchResponse)
    try:
        response.session_id = context.begin_session()
        for first in range(0, len(results), ITEMS_PER_STEP):
            part = results[first : first + ITEMS_PER_STEP]
            context.note(part)
            add_results(response, part)
            yield None
    except GeneratorExit:
        release_results(results)
        raise
    return response


def open_logs(broker: Broker, context: FetchContext) -> Steps[None]:
    """Open the logs of the fetch's partitions in threads, one after another."""
    for target in list(context.targets):
        yield opening_of(broker, target.topic, target.index, target.topic_id)


class TargetRead(Protocol):
    """One pass over the targets of a fetch, some at a time: ``PartitionRead``, or a follower's ``ReplicaRead``."""

    def add(self, targets: list[FetchTarget]) -> None: ...

    def result(self) -> ReadResult: ...


def read_in_steps(read: TargetRead, targets: list[FetchTarget]) -> Steps[ReadResult]:
    """Run ``read_targets`` in steps and return its result. Slices are released if the client disconnects."""
    from tidelog.broker.handlers.fetch import release_results

    try:
        for first in range(0, len(targets), PER_STEP):
            read.add(targets[first : first + PER_STEP])
            yield None
    except GeneratorExit:
        release_results(read.result().results)
        raise
    return read.result()


def read_until_enough(broker: Broker, context: FetchContext, params: ReadParams, max_wait_ms: int) -> Steps[ReadResult]:
    """Read, wait and read again until there are ``min_bytes``, but no longer than ``max_wait_ms``. For the check of a
    transaction index, wait up to PROOF_WAIT_MS if that is longer.

    Each wait for records begins before the partitions are read, so that no append between the read and the wait is
    missed.
    """
    from tidelog.broker.handlers.fetch import PartitionRead, release_results

    clock = broker.timers.monotonic_ms
    until_ms = clock() + max_wait_ms
    until_proven_ms = clock() + max(max_wait_ms, PROOF_WAIT_MS)
    partitions = yield from partitions_of(broker, context)
    is_over = False
    while True:
        left_ms = 0 if is_over else until_ms - clock()
        wait = KeysWait(broker.purgatory, partitions, left_ms) if left_ms > 0 else None
        try:
            read = yield from read_in_steps(PartitionRead(broker, params), context.targets)
            limit_ms = until_ms if read.proof is None else until_proven_ms
            if is_over or read.is_enough(params.min_bytes) or clock() >= limit_ms:
                return read
            release_results(read.results)
            if read.proof is not None:
                is_over = yield from wait_for_proof(broker, read.proof, partitions, limit_ms)
            elif wait is not None:
                yield wait.ended
                is_over = wait.is_over
        finally:
            if wait is not None:
                wait.cancel()


def wait_for_proof(broker: Broker, proof: Deferred[None], partitions: list[Partition], until_ms: float) -> Steps[bool]:
    """Wait until one of the partitions changes, as it does when ``proof`` ends, or until ``until_ms``. Return whether
    the fetch is to be answered."""
    if proof.done:
        return False  # it ended between two steps
    wait = KeysWait(broker.purgatory, partitions, until_ms - broker.timers.monotonic_ms())
    try:
        yield wait.ended
    finally:
        wait.cancel()
    return wait.is_over


def partitions_of(broker: Broker, context: FetchContext) -> Steps[list[Partition]]:
    """Find the partitions that a fetch waits for. Those that do not exist are left out: the read has their errors."""
    manager = broker.replica_manager
    partitions = []
    for target in context.targets:
        with suppress(KafkaError):
            if target.topic:
                partitions.append(manager.partition(target.topic, target.index))
            else:
                partitions.append(manager.partition_by_id(target.topic_id, target.index))
        yield None
    return partitions
