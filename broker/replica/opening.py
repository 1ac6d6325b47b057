"""Logs that threads open: those that a request names, and those of partitions whose role needs their logs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from tidelog.broker.loop.deferred import Deferred
from tidelog.protocol.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.loop.threads import InThread
    from tidelog.broker.replica.partition import Partition

K = TypeVar("K", bound=Hashable)


def opening_of(broker: Broker, topic: str, index: int, topic_id: bytes = b"") -> Deferred[None] | None:
    """Begin to open a partition's log in a thread. Return a Deferred that settles when that ends; None if the log is
    open, or this broker does not have the partition. Without a name the topic is found by ``topic_id``."""
    manager = broker.replica_manager
    try:
        return (manager.partition(topic, index) if topic else manager.partition_by_id(topic_id, index)).when_open()
    except KafkaError:
        return None  # the request raises it again


class LogOpener:
    """Opens logs in a thread, those that come meanwhile in the next one. Loop thread only."""

    def __init__(self, in_thread: InThread, end: Callable[[Partition, Exception | None], None]) -> None:
        """``end`` is called for each partition once its log is open, or with the error."""
        self._in_thread = in_thread
        self._end = end
        self._waiting: dict[Partition, None] = {}
        self._is_opening = False

    def open_later(self, partition: Partition) -> None:
        """Begin to open a log, once the thread has ended that opens others."""
        self._waiting[partition] = None
        if not self._is_opening:
            self._open_all()

    def _open_all(self) -> None:
        partitions, self._waiting = {one: one for one in self._waiting}, {}
        self._is_opening = bool(partitions)
        if partitions:
            errors: dict[Partition, Exception] = {}
            opening = self._in_thread(lambda: errors.update(open_logs(partitions)))
            opening.on_done(lambda done: self._end_all(partitions, errors, done), self._end_failed)

    def _end_all(
        self, partitions: Iterable[Partition], errors: Mapping[Partition, Exception], done: Deferred[None]
    ) -> None:
        failure: Exception | None = None
        try:
            done.result()
        except KafkaError as error:
            failure = error
        for partition in partitions:
            self._end(partition, errors.get(partition, failure))
        self._open_all()

    def _end_failed(self, _: Exception) -> None:
        """Note after an unexpected error that no thread opens logs; the next ``open_later`` starts one."""
        self._is_opening = False


def open_logs(partitions: Mapping[K, Partition]) -> dict[K, Exception]:
    """Open or create the logs of these partitions, one after the other. Any thread. Return the errors of those that
    could not be opened."""
    errors: dict[K, Exception] = {}
    for key, partition in partitions.items():
        try:
            partition.open_files()
        except Exception as error:  # noqa: BLE001 - the caller logs it; the other partitions are opened
            errors[key] = error
    return errors
