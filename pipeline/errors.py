"""What the pipeline raises: one clear line each, naming the thing, its value and what was expected.

Every error can be pickled: executors raise them, the driver shows them.
"""

from __future__ import annotations


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
    """The topic was deleted and made anew: its id is another one, and the old offsets mean nothing in it."""


class MalformedTimestampError(PipelineError):
    """A record's timestamp in ms does not fit Spark's timestamps, which count microseconds in 64 bits."""


class CorruptBatchError(PipelineError):
    """Stored bytes are damaged. ``file``, byte ``position`` of the batch, its ``offset`` as far as known, and why."""

    def __init__(self, file: str, position: int, offset: int, why: str) -> None:
        super().__init__(file, position, offset, why)
        self.file = file
        self.position = position
        self.offset = offset
        self.why = why

    def __str__(self) -> str:
        return f"{self.file}: corrupt batch at byte {self.position} (offset {self.offset}): {self.why}"
