"""Changing topics and configs without holding up the loop: what waits for the disk is done in a thread.

    create    commit                            -> sync in a thread -> first logs in a thread -> shown and answered
    widen     first logs in a thread -> commit  -> sync in a thread -> shown and answered
    delete    commit, hidden from every client  -> sync in a thread -> logs renamed in a thread -> name free, answered
    configs   commit, in force at once          -> sync in a thread -> answered

The order is that of ``broker/controller/topics.py``, so its argument about crashes holds: no topic or partition is
shown, and no log is renamed, before the commit that says so is on disk. Meanwhile the name is taken: who asks for it is
told that the topic exists. What is asked of a topic that is being widened (deletion, configs, more partitions) begins
when that is done, in the order it was asked. One sync serves all changes
that were committed when it began (as ``broker/replica/group_flush.py`` does for records), so a request for a hundred
topics waits for one. Loop thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.metadata.image import INTERNAL_TOPICS, TopicImage
from tidelog.protocol.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.broker.controller.topics import TopicListener, TopicManager

T = TypeVar("T")
InThread = Callable[[Callable[[], None]], Deferred[None]]
CallSoon = Callable[[Callable[[], None]], object]

SETTLED_PER_TURN = 8
"""Changes that go on in one turn after a sync. Each may make or remove logs, and one sync may cover thousands."""


USE_DEFAULT = -1  # the wire's "as the broker is configured" for partitions and replicas


class NewTopic(NamedTuple):
    """A topic that is asked for; with ``validate_only`` it is only said what it would be."""

    name: str
    partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    configs: Mapping[str, str] | None = None
    validate_only: bool = False


class Change(NamedTuple):
    """A change that is under way: the topic as it will be, or was, and when that is so."""

    image: TopicImage
    done: Deferred[TopicImage]


def run_now(work: Callable[[], None]) -> Deferred[None]:
    """Do it here and now: for where there is no loop to hold up."""
    deferred: Deferred[None] = Deferred()
    try:
        work()
    except KafkaError as error:
        deferred.fail(error)
    else:
        deferred.complete(None)
    return deferred


def call_now(work: Callable[[], None]) -> None:
    """Call it here and now: for where there is no loop."""
    work()


def settle_durable(done: Deferred[None], durable: Deferred[None]) -> None:
    """Settle as a sync did, with an error for clients."""
    try:
        durable.result()
    except KafkaError as error:
        done.fail(error)
    else:
        done.complete(None)


def begin_after(under_way: Deferred[Any], begin: Callable[[], Deferred[T]]) -> Deferred[T]:
    """Return the result of ``begin``, which is called once ``under_way`` is settled, well or badly."""
    result: Deferred[T] = Deferred()

    def go(_: Deferred[Any]) -> None:
        try:
            begun = begin()
        except KafkaError as error:
            result.fail(error)
        else:
            begun.pass_to(result)

    under_way.on_done(go)
    return result


class TopicChanges:
    """The changes under way. ``in_thread`` runs work and settles on the loop; ``sync_metadata`` is for any thread and
    raises KafkaError."""

    __slots__ = (
        "_creating",
        "_in_thread",
        "_is_settling",
        "_listener",
        "_settled",
        "_sync_metadata",
        "_syncing",
        "_topics",
        "_waiting",
        "_widening",
        "call_soon",
    )

    def __init__(
        self,
        topics: TopicManager,
        sync_metadata: Callable[[], None],
        listener: TopicListener,
        in_thread: InThread,
        call_soon: CallSoon,
    ) -> None:
        self._topics = topics
        self._sync_metadata = sync_metadata
        self._listener = listener
        self._in_thread = in_thread
        self.call_soon = call_soon
        self._creating: dict[str, Change] = {}
        self._widening: dict[str, Change] = {}
        self._waiting: list[Deferred[None]] = []
        self._syncing = False
        self._settled: deque[tuple[Deferred[None], KafkaError | None]] = deque()
        self._is_settling = False

    def create(self, new: NewTopic) -> Change:
        """Create a topic. Raises what ``TopicManager.create_topic`` raises before anything is committed; what fails
        after that fails ``done``, and then there is no topic."""
        image = self._topics.begin_create(new, sync=False)
        change = Change(image, Deferred())
        if new.validate_only:
            change.done.complete(image)
            return change
        self._creating[new.name] = change
        self._when_durable().on_done(partial(self._make_logs, change))
        return change

    def auto_create(self, name: str) -> Change:
        """Create a topic that a client named, unless that is under way already. Raises as ``create``."""
        under_way = self._creating.get(name)
        if under_way is not None:
            return under_way
        if name not in INTERNAL_TOPICS:
            return self.create(NewTopic(name))
        change = Change(self._topics.ensure_internal_topic(name), Deferred())
        change.done.complete(change.image)
        return change

    def delete(self, name: str) -> Change:
        """Delete a topic; its name is free when ``done`` is.

        Raises UnknownTopicOrPartitionError, TopicDeletionDisabledError.
        """
        under_way = self._widening.get(name)
        if under_way is not None:
            return Change(under_way.image, begin_after(under_way.done, lambda: self.delete(name).done))
        change = Change(self._topics.begin_delete(name, sync=False), Deferred())
        self._when_durable().on_done(partial(self._remove_logs, change))
        return change

    def widen(self, name: str, count: int, validate_only: bool = False) -> Deferred[TopicImage]:
        """Widen a topic to ``count`` partitions in all; settles when they are there, or with ``validate_only`` at once.

        Raises what ``TopicManager.begin_widen`` raises before anything is committed; what fails after that fails the
        deferred, and then the topic is as it was. Source: CreatePartitions.
        """
        under_way = self._widening.get(name)
        if under_way is not None:
            return begin_after(under_way.done, lambda: self.widen(name, count, validate_only))
        before, wider = self._topics.check_widening(name, count)
        change = Change(wider, Deferred())
        if validate_only:
            change.done.complete(wider)
        else:
            self._make_new_logs(before, change)
        return change.done

    def commit(self, topic: str | None, work: Callable[[], object]) -> Deferred[None]:
        """Do ``work``, which commits a change of ``topic``, or with None of something else, without syncing; settles
        when that is durable. Raises what ``work`` raises; fails with KafkaStorageError."""
        under_way = None if topic is None else self._widening.get(topic)
        if under_way is not None:
            return begin_after(under_way.done, lambda: self.commit(topic, work))
        work()
        done: Deferred[None] = Deferred()
        self._when_durable().on_done(partial(settle_durable, done))
        return done

    def first_logs(self, image: TopicImage) -> Callable[[], None]:
        """Return the step that makes the first logs of a new topic, for any thread. Both may raise
        KafkaStorageError."""
        return self._listener.first_logs(image, 0)

    def last_logs(self, image: TopicImage) -> Callable[[], None]:
        """Return the step that removes the logs of a topic whose deletion is durable, for any thread. Raises
        KafkaStorageError."""
        return self._listener.remove_logs(image)

    def _make_new_logs(self, before: TopicImage, change: Change) -> None:
        """Make the first logs of a topic's new partitions."""
        try:
            work = self._listener.first_logs(change.image, before.partition_count)
        except KafkaError as error:
            change.done.fail(error)
        else:
            self._widening[before.name] = change
            self._in_thread(work).on_done(partial(self._commit_widening, before, change))

    def _commit_widening(self, before: TopicImage, change: Change, made: Deferred[None]) -> None:
        """Commit a topic's new partitions, whose first logs are made."""
        try:
            made.result()
            self._topics.commit_widening(change.image, before.partition_count)
        except KafkaError as error:
            self._widening.pop(change.image.name, None)
            change.done.fail(error)
        else:
            self._when_durable().on_done(partial(self._finish_widening, before, change))

    def _finish_widening(self, before: TopicImage, change: Change, durable: Deferred[None]) -> None:
        self._widening.pop(before.name, None)
        try:
            durable.result()
        except KafkaError as error:
            change.done.fail(error)
            return
        self._topics.finish_create(change.image, before.partition_count)
        change.done.complete(change.image)

    def _make_logs(self, change: Change, durable: Deferred[None]) -> None:
        try:
            durable.result()
            work = self.first_logs(change.image)
        except KafkaError as error:
            self._fail(change, error)
        else:
            self._in_thread(work).on_done(partial(self._finish_creation, change))

    def _finish_creation(self, change: Change, made: Deferred[None]) -> None:
        try:
            made.result()
        except KafkaError as error:
            self._fail(change, error)
            return
        self._creating.pop(change.image.name, None)
        self._topics.finish_create(change.image)
        change.done.complete(change.image)

    def _fail(self, change: Change, error: KafkaError) -> None:
        self._creating.pop(change.image.name, None)
        self._topics.undo_create(change.image)
        change.done.fail(error)

    def _remove_logs(self, change: Change, durable: Deferred[None]) -> None:
        try:
            durable.result()
        except KafkaError as error:
            change.done.fail(error)
        else:
            # In a thread: it waits for those that work on the files, a sync or a step of the indexer.
            self._in_thread(self.last_logs(change.image)).on_done(partial(self._finish_removal, change))

    def _finish_removal(self, change: Change, removed: Deferred[None]) -> None:
        try:
            removed.result()
        except KafkaError as error:
            self._topics.finish_delete(change.image, removed=False)
            change.done.fail(error)
        else:
            self._topics.finish_delete(change.image, removed=True)
            change.done.complete(change.image)

    # One sync at a time, for all that was committed before it.

    def _when_durable(self) -> Deferred[None]:
        deferred: Deferred[None] = Deferred()
        self._waiting.append(deferred)
        if not self._syncing:
            self._sync()
        return deferred

    def _sync(self) -> None:
        covered, self._waiting = self._waiting, []
        self._syncing = True
        self._in_thread(self._sync_metadata).on_done(partial(self._finish_sync, covered))

    def _finish_sync(self, covered: list[Deferred[None]], done: Deferred[None]) -> None:
        self._syncing = False
        failure: KafkaError | None = None
        try:
            done.result()
        except KafkaError as error:
            failure = error
        self._settled.extend((deferred, failure) for deferred in covered)
        if not self._is_settling:
            self._settle()
        if self._waiting and not self._syncing:
            self._sync()

    def _settle(self) -> None:
        """Go on with some of the changes that a sync has covered, and with others in the next turn."""
        self._is_settling = True
        for _ in range(min(SETTLED_PER_TURN, len(self._settled))):
            deferred, failure = self._settled.popleft()
            if failure is None:
                deferred.complete(None)
            else:
                deferred.fail(failure)
        self._is_settling = bool(self._settled)
        if self._is_settling:
            self.call_soon(self._settle)
