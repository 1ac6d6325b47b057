"""Full disks that have free space again, and logs that were refused for a reason that can pass."""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.log.directories.room import RoomWatch
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import LogStorageError
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import CorruptMessageError, KafkaError, KafkaStorageError


class Disk:
    """The state of a directory whose disk is full or not."""

    def __init__(self) -> None:
        self.shortage: str | None = None
        self.is_full = False

    def check_room(self, _: object) -> None:
        self.shortage = "no room" if self.is_full else None


class Log:
    """A log that saves its indices."""

    def __init__(self, error: KafkaStorageError | None = None) -> None:
        self.is_serving = True
        self.saved = 0
        self._error = error

    def save_indices(self) -> None:
        self.saved += 1
        if self._error is not None:
            raise self._error


def entry(
    log: object = None, error: KafkaError | None = None, failure: object = None, **marks: bool
) -> SimpleNamespace:
    directory = SimpleNamespace(state=SimpleNamespace(failure=failure))
    return SimpleNamespace(
        **{"path": "t-0", "directory": directory, "log": log, "error": error, "lock": threading.Lock()}
        | {"is_gone": False, "is_deleted_unrenamed": False}
        | marks
    )


def watch(
    disk: Disk,
    entries: list[SimpleNamespace],
    open_log: Callable[[Any], Any],
    served: deque[TopicPartition] | None = None,
) -> RoomWatch:
    by_partition = {TopicPartition("t", number): one for number, one in enumerate(entries)}
    directories = [SimpleNamespace(state=disk)]
    environment = SimpleNamespace(file_system=None, service_changes=deque() if served is None else served)
    return RoomWatch(cast(Any, environment), cast(Any, directories), cast(Any, by_partition), open_log)


def never(_: object) -> UnifiedLog:
    raise AssertionError("no log is to be opened")


def test_indices_are_written_once_there_is_free_space_again() -> None:
    disk, logs = Disk(), [Log(), Log(KafkaStorageError("still full")), Log()]
    logs[2].is_serving = False
    room = watch(disk, [*(entry(log) for log in logs), entry()], never)
    for is_full in (False, True, True):
        disk.is_full = is_full
        room.run()
    assert [log.saved for log in logs] == [0, 0, 0]
    disk.is_full = False
    room.run()
    room.run()
    assert [log.saved for log in logs] == [1, 1, 0]


def passing() -> LogStorageError:
    return LogStorageError("open", "t-0", errno.EMFILE)


def test_a_refusal_that_can_pass_is_tried_again_each_time() -> None:
    refused, broken = entry(error=passing()), entry(error=CorruptMessageError("damage"))
    answers: list[object] = [passing(), "log"]

    def open_log(_: object) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    served: deque[TopicPartition] = deque()
    room = watch(Disk(), [refused, broken], open_log, served)
    seen: list[object] = []
    for _ in range(2):
        room.run()
        seen.append((refused.log, refused.error is None, len(served)))
    assert seen == [(None, False, 0), ("log", True, 1)]
    room.run()
    assert isinstance(broken.error, CorruptMessageError)


def test_every_refused_log_is_tried_when_an_operator_asks() -> None:
    broken = entry(error=CorruptMessageError("damage"))
    watch(Disk(), [broken], lambda _: "log").try_refused_again()
    assert (broken.log, broken.error) == ("log", None)


def test_no_log_of_a_failed_directory_is_opened() -> None:
    watch(Disk(), [entry(error=passing(), failure="a failed sync")], never).try_refused_again()


@pytest.mark.parametrize("mark", ["is_gone", "is_deleted_unrenamed"])
def test_a_log_that_goes_away_is_left_alone(mark: str) -> None:
    watch(Disk(), [entry(error=passing(), **{mark: True})], never).try_refused_again()
