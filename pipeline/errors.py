"""The pipeline's errors: each message is one line with the object, its value and the expected value.

Every error can be pickled: executors raise them, the driver shows them. Spark prints the Python traceback with the
message. So functions that Spark calls are wrapped by ``hide_frames``, which removes the frames inside the pipeline:
they do not help a user who mistyped an option.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Generator, Iterator
from typing import ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
#: Terminal colours, arrows and stack frames in the errors of libraries.
_DECORATION = re.compile(r"\x1b\[[0-9;]*m|↳")
_FRAMES = re.compile(r"\n\s*0: .*", re.DOTALL)


class PipelineError(Exception):
    """Base of all errors of the pipeline; the message is one line for a user."""


class OptionError(PipelineError):
    """An option is unknown, missing, has an invalid value or contradicts another one."""


class SelectionError(PipelineError):
    """A path is missing, unreadable or not a Kafka data directory, a named topic or partition does not exist, or no
    topic matches a pattern.

    Also raised when directories of one partition cannot be read as its replicas.
    """


class OffsetRangeError(PipelineError):
    """A wanted offset or time is beyond the end of the log, or a wanted range ends before its start.

    Also raised when the files end before the broker's log does.
    """


class DataLossError(PipelineError):
    """Wanted records are gone: they are below the log start, missing within the log, or were deleted meanwhile.

    Raised under ``failOnDataLoss=true`` (the default); with ``false`` reading goes on at the first existing record.
    """


class TopicRecreatedError(PipelineError):
    """The topic was deleted and created again: its id is another one, and offsets of the old topic are not valid."""


class LogRewrittenError(PipelineError):
    """A log was truncated and written again: it has other records now at offsets that were read before."""


class MalformedTimestampError(PipelineError):
    """A record's timestamp in ms does not fit Spark's timestamps, which count microseconds in 64 bits."""


class RemoteError(PipelineError):
    """An object store does not answer or refuses a request, or an object was replaced while it was read."""


class ObjectGoneError(RemoteError):
    """An object was deleted while it was read."""


class UndecidedTransactionError(PipelineError):
    """Damage hides whether a transaction was aborted."""


class CorruptBatchError(PipelineError):
    """A stored batch is damaged: its ``file``, byte ``position``, base ``offset``, and the reason (``why``).

    ``offset`` is as read; if the header is impossible, it may be the offset after the batch before, or -1.
    ``expected`` is the offset at which the batch should begin, -1 when it is not known.
    """

    def __init__(self, file: str, position: int, offset: int, why: str, expected: int = -1) -> None:
        super().__init__(file, position, offset, why, expected)
        self.file = file
        self.position = position
        self.offset = offset
        self.why = why
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.file}: corrupt batch at byte {self.position} (offset {self.offset}): {self.why}"


def one_line(error: BaseException) -> str:
    """Write an error's message in one line, without colours and stack frames; without a message the name of its
    class."""
    text = _FRAMES.sub("", _DECORATION.sub("", str(error)))
    return ": ".join(line.strip() for line in text.splitlines() if line.strip()) or type(error).__name__


def hide_frames(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Wrap a function so that its PipelineErrors have no frames of the pipeline and no cause."""

    @functools.wraps(function)
    def call(*args: _Given.args, **named: _Given.kwargs) -> _Result:
        try:
            return function(*args, **named)
        except PipelineError as error:
            raise error.with_traceback(None) from None

    return call


def hide_frames_of_rows(function: Callable[_Given, Iterator[_Result]]) -> Callable[_Given, Generator[_Result]]:
    """Wrap a generator function as ``hide_frames`` wraps a function."""

    @functools.wraps(function)
    def call(*args: _Given.args, **named: _Given.kwargs) -> Generator[_Result]:
        try:
            yield from function(*args, **named)
        except PipelineError as error:
            raise error.with_traceback(None) from None

    return call
