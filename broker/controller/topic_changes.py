"""Changes of topics and configs that do not block the loop: steps that wait for the disk run in a thread.

A change commits records to the metadata log, which is then synced. The *first logs* of a topic are those that are made
with it; the other partitions' logs are made at their first use. To *widen* a topic is to add partitions::

    create    commit                            -> sync in a thread -> first logs in a thread -> shown and answered
    widen     first logs in a thread -> commit  -> sync in a thread -> shown and answered
    delete    commit, hidden from every client  -> sync in a thread -> logs renamed in a thread -> name free
              -> coordinators have forgotten it -> answered
    configs   commit, in force at once          -> sync in a thread -> answered

The order is that of ``broker/controller/topics.py``, so its argument about crashes holds: no topic or partition is
shown, and no log is renamed, before the commit is on disk. Only an internal topic is shown earlier, and the loop's
thread creates its logs, because a coordinator waits for it; answers wait for the sync (``ensure_internal_topic``).
During a change the name is taken: another creation fails with TOPIC_ALREADY_EXISTS. Other changes of a topic that is
being widened (deletion, configs, partitions) begin when the widening is done, in the order of their requests. The syncs
are those of ``broker/loop/group_sync.py``: a request for a hundred topics waits for a few syncs. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.loop.deferred import Deferred, begin_after, deferred_error, error_of
from tidelog.broker.loop.threads import Threads
from tidelog.broker.metadata.image import INTERNAL_TOPICS, TopicImage
from tidelog.protocol.errors import KafkaError, UnknownServerError

if TYPE_CHECKING:
    from tidelog.broker.controller.metadata_controller import MetadataController
    from tidelog.broker.controller.topics import TopicListener, TopicManager

USE_DEFAULT = -1  # on the wire: the broker's default number of partitions or replicas


Forget = Callable[[TopicImage], Deferred[None]]
"""Function that makes the coordinators forget a deleted topic; its Deferred settles when they have, and never fails."""


AuditCreation = Callable[[], None]
"""Callback that writes the audit line of a created topic; called once."""


class NewTopic(NamedTuple):
    """A topic that a client asks for; with ``validate_only`` it is checked and not created."""

    name: str
    partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    configs: Mapping[str, str] | None = None
    validate_only: bool = False


class Change(NamedTuple):
    """A change under way: the topic as it will be, or was before its deletion. ``done`` settles at the end of the
    change.
    """

    image: TopicImage
    done: Deferred[TopicImage]


class TopicChanges:
    """Changes of topics and configs, and those that are under way."""

    __slots__ = (
        "_controller",
        "_creating",
        "_forget",
        "_listener",
        "_threads",
        "_topics",
        "_widening",
    )

    def __init__(
        self,
        topics: TopicManager,
        controller: MetadataController,
        listener: TopicListener,
        threads: Threads,
        forget: Forget,
    ) -> None:
        self._topics = topics
        self._forget = forget
        self._controller = controller
        self._listener = listener
        self._threads = threads
        self._creating: dict[str, Change] = {}
        self._widening: dict[str, Change] = {}
        """Changes under way, by the topic's name."""

    def create(self, new: NewTopic, created: AuditCreation | None = None) -> Change:
        """Create a topic, and call ``created`` when it exists.

        Raises what ``TopicManager.begin_create`` raises before anything is committed. A later failure fails ``done``,
        and the topic is deleted again.
        """
        image = self._topics.begin_create(new)
        change = Change(image, Deferred())
        if new.validate_only:
            change.done.complete(image)
            return change
        self._creating[new.name] = change
        call_when_done(change.done, created)
        self._continue_after(self._controller.when_synced(), self._make_logs, change)
        return change

    def auto_create(self, name: str, created: AuditCreation | None = None) -> Change:
        """Create a topic that a client named. If its creation is under way, return that change without calling
        ``created``.

        Raises as ``create``.
        """
        under_way = self._creating.get(name)
        if under_way is not None:
            return under_way
        if name not in INTERNAL_TOPICS:
            return self.create(NewTopic(name), created)
        image = self._topics.ensure_internal_topic(name)
        change = Change(image, self._controller.when_synced().map(lambda _: image))
        call_when_done(change.done, created)
        return change

    def delete(self, name: str) -> Change:
        """Delete a topic; ``done`` settles when its name is free and the coordinators have forgotten it.

        Raises what ``TopicManager.begin_delete`` raises; if the topic is being widened, ``done`` fails with that error
        instead.
        """
        under_way = self._widening.get(name)
        if under_way is not None:
            return Change(under_way.image, begin_after(under_way.done, lambda: self.delete(name).done))
        change = Change(self._topics.begin_delete(name), Deferred())
        self._remove_when_durable(change)
        return change

    def widen(self, name: str, count: int, validate_only: bool = False) -> Deferred[TopicImage]:
        """Widen a topic to ``count`` partitions in all; settles when they exist, or with ``validate_only`` at once.

        Raises what ``TopicManager.check_widening`` raises before anything is committed; if the topic is being widened
        already, the Deferred fails with that error instead. After a later failure, too, the Deferred fails, and clients
        see the topic as before. Source: CreatePartitions.
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
        """Do ``work``, which commits a change without syncing; settles when the change is durable. ``topic`` is the
        topic that it changes, if any: ``work`` waits until a widening of that topic is done.

        Raises what ``work`` raises; if it has waited, the Deferred fails with that error instead. A failed sync fails
        the Deferred with KafkaStorageError.
        """
        under_way = None if topic is None else self._widening.get(topic)
        if under_way is not None:
            return begin_after(under_way.done, lambda: self.commit(topic, work))
        work()
        return self._controller.when_synced()

    def _continue_after(
        self, step: Deferred[None], go_on: Callable[[Change, Deferred[None]], None], change: Change
    ) -> None:
        """Call ``go_on`` with a change once one of its steps is settled. An unexpected error ends the change, so that
        it does not stay under way, and its clients get an error.
        """

        def call(settled: Deferred[None]) -> None:
            finished = False
            try:
                go_on(change, settled)
                finished = True
            finally:
                if not finished:
                    self._abort(change)

        step.on_done(call)

    def _abort(self, change: Change) -> None:
        """End a change after an unexpected error; a topic that was being created is deleted again."""
        self._widening.pop(change.image.name, None)
        try:
            if self._creating.get(change.image.name) is change:
                del self._creating[change.image.name]
                self.undo_create(change.image)
        finally:
            if not change.done.done:
                change.done.fail(UnknownServerError())

    def _make_new_logs(self, before: TopicImage, change: Change) -> None:
        """Create the first logs of a topic's new partitions."""
        try:
            work = self._listener.first_logs(change.image, before.partition_count)
        except KafkaError as error:
            change.done.fail(error)
        else:
            self._widening[before.name] = change
            self._continue_after(self._threads.in_thread(work), partial(self._commit_widening, before), change)

    def _commit_widening(self, before: TopicImage, change: Change, made: Deferred[None]) -> None:
        """Commit a topic's new partitions, whose first logs exist now."""
        failure = error_of(made)
        if failure is None:
            try:
                self._topics.commit_widening(change.image, before.partition_count)
            except KafkaError as error:
                failure = error
        if failure is not None:
            self._widening.pop(change.image.name, None)
            change.done.fail(failure)
        else:
            self._continue_after(self._controller.when_synced(), partial(self._finish_widening, before), change)

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
            work = self._listener.first_logs(change.image, 0)
        except KafkaError as error:
            self._fail(change, error)
        else:
            self._continue_after(self._threads.in_thread(work), self._finish_creation, change)

    def _finish_creation(self, change: Change, made: Deferred[None]) -> None:
        failure = error_of(made)
        if failure is not None:
            self._fail(change, failure)
            return
        self._topics.finish_create(change.image)
        self._creating.pop(change.image.name, None)
        change.done.complete(change.image)

    def undo_create(self, image: TopicImage) -> Deferred[TopicImage]:
        """Delete a topic whose creation failed. The Deferred settles when its name is free, and fails if the deletion
        fails.
        """
        undone = Change(image, Deferred())
        try:
            self._topics.commit_deletion(image)
        except KafkaError as error:  # a disk that could not take the logs may not take the record either
            undone.done.fail(error)
        else:
            self._remove_when_durable(undone)
        return undone.done

    def _fail(self, change: Change, error: KafkaError) -> None:
        self._creating.pop(change.image.name, None)
        self.undo_create(change.image).on_done(lambda _: change.done.fail(error))

    def _remove_when_durable(self, change: Change) -> None:
        self._continue_after(self._controller.when_synced(), self._remove_logs, change)

    def _remove_logs(self, change: Change, durable: Deferred[None]) -> None:
        failure = error_of(durable)
        if failure is not None:
            change.done.fail(failure)
            return
        try:
            work = self._listener.remove_logs(change.image)
        except KafkaError as error:
            self._finish_removal(change, deferred_error(error))
        else:
            # In a thread: the removal waits until a sync or a step of the indexer has finished with the files.
            self._continue_after(self._threads.in_thread(work), self._finish_removal, change)

    def _finish_removal(self, change: Change, removed: Deferred[None]) -> None:
        """Free the name, even if logs could not be removed: the deletion is durable. The coordinators forget the topic,
        so that a new topic of its name does not get its committed offsets.
        """
        failure = error_of(removed)
        self._topics.finish_delete(change.image, removed=failure is None)
        forgotten = self._forget(change.image)
        if failure is None:
            forgotten.on_done(lambda _: change.done.complete(change.image))
        else:
            forgotten.on_done(lambda _: change.done.fail(failure))


def call_when_done(done: Deferred[TopicImage], created: AuditCreation | None) -> None:
    """Call ``created`` once the topic is created, and not if that fails."""
    if created is not None:
        done.on_done(lambda done: None if error_of(done) else created())
