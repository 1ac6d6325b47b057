"""The pipeline's errors: one clear line each, naming the thing, its value and what was expected.

Every error can be pickled: executors raise them, the driver shows them. Spark prints the Python traceback around the
message, so functions that Spark calls are wrapped by ``plain``: an error leaves them without the frames inside the
pipeline, which say nothing to a user who mistyped an option.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator
from typing import ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class PipelineError(Exception):
    """Base of all errors of the pipeline; the message is one line for a user."""


class OptionError(PipelineError):
    """An option is unknown, missing, has an impossible value or contradicts another one."""


class SelectionError(PipelineError):
    """A path is missing or is no Kafka data directory, or a topic or partition that was asked for is not there."""


class OffsetRangeError(PipelineError):
    """An offset that was asked for does not exist: beyond the end of the log, or an end before its start."""


class DataLossError(PipelineError):
    """Records that were asked for are gone: below the log start, or their segment was deleted under the query.

    Raised under ``failOnDataLoss=true`` (the default); with ``false`` reading goes on at the first record there is.
    """


class TopicRecreatedError(PipelineError):
    """The topic was deleted and created again: its id is another one, and the old offsets mean nothing in it."""


class LogRewrittenError(PipelineError):
    """A log was cut and written again: at offsets that were read before it has other records now."""


class MalformedTimestampError(PipelineError):
    """A record's timestamp in ms does not fit Spark's timestamps, which count microseconds in 64 bits."""


class RemoteError(PipelineError):
    """An object store does not answer, refuses, or has another object now than the one that was being read."""


class ObjectGoneError(RemoteError):
    """An object was deleted while it was read."""


class CorruptBatchError(PipelineError):
    """Stored bytes are damaged. ``file``, byte ``position`` of the batch, its ``offset`` as far as known, and why;
    ``expected`` is the offset that should follow there, -1 when that is not known."""

    def __init__(self, file: str, position: int, offset: int, why: str, expected: int = -1) -> None:
        super().__init__(file, position, offset, why, expected)
        self.file = file
        self.position = position
        self.offset = offset
        self.why = why
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.file}: corrupt batch at byte {self.position} (offset {self.offset}): {self.why}"


def plain(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Wrap a function so that its PipelineErrors have no frames and causes. Any other exception keeps them."""

    @functools.wraps(function)
    def called(*args: _Given.args, **named: _Given.kwargs) -> _Result:
        try:
            return function(*args, **named)
        except PipelineError as error:
            raise error.with_traceback(None) from None

    return called


def plain_rows(function: Callable[_Given, Iterator[_Result]]) -> Callable[_Given, Generator[_Result]]:
    """Wrap a generator function as ``plain`` wraps a function."""

    @functools.wraps(function)
    def called(*args: _Given.args, **named: _Given.kwargs) -> Generator[_Result]:
        try:
            yield from function(*args, **named)
        except PipelineError as error:
            raise error.with_traceback(None) from None

    return called
