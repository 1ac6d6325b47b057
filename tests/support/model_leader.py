"""Models for tests of a follower's fetch loop: a leader that answers Fetch and ListOffsets, and a follower's log.

A record is one byte, its leader epoch; a log is a byte string of records from offset ``start`` on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.broker.cluster.fetching.fetcher import LeaderFetcher, Response
from tidelog.broker.cluster.fetching.work import Append, LogPosition, StartAt, TruncateTo, Work
from tidelog.protocol import errors
from tidelog.protocol.messages import fetch, list_offsets

TOPIC: Final = "orders"
TOPIC_ID: Final = b"t" * 16
UNKNOWN_EPOCH: Final = -1


class ModelLog:
    """A log: the leader epochs of its records, from offset ``start`` on."""

    def __init__(self, records: bytes = b"", start: int = 0) -> None:
        self.start = start
        self.records = records
        self.high_watermark = start

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.start + len(self.records)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch of the log up to ``epoch``, and the offset at which it ends.

        If all epochs are larger, return ``epoch`` and the start of the log.
        """
        below = [one for one in self.records if one <= epoch]
        return (below[-1] if below else epoch), self.start + len(below)


class ModelFollower(ModelLog):
    """A follower's log, which executes the work of a fetch loop.

    ``cut`` has the truncations below the high watermark: their offset, and the high watermark before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cut: list[tuple[int, int]] = []

    @property
    def position(self) -> LogPosition:
        """The position at which the fetch loop continues."""
        return LogPosition(self.end, self.records[-1] if self.records else UNKNOWN_EPOCH, self.start)

    def do(self, work: Work) -> None:
        """Execute one item of work."""
        if isinstance(work, Append):
            assert work.offset == self.end
            self.records += bytes(work.records)
            self._let_go(work.log_start_offset)
            self.high_watermark = max(self.start, min(work.high_watermark, self.end))
        elif isinstance(work, StartAt):
            self.start, self.records, self.high_watermark = work.offset, b"", work.offset
        elif isinstance(work, TruncateTo):
            self._truncate(work.offset)
        else:
            self._truncate(min(work.end_offset, self.end_of_epoch(work.epoch)[1]))

    def _let_go(self, start: int) -> None:
        if start > self.start:
            self.records, self.start = self.records[start - self.start :], start

    def _truncate(self, offset: int) -> None:
        if offset < self.high_watermark:
            self.cut.append((offset, self.high_watermark))
        self.records = self.records[: max(0, offset - self.start)]
        self.high_watermark = min(self.high_watermark, self.end)


class ModelLeader(ModelLog):
    """A leader in ``epoch``, with one fetch session."""

    def __init__(self, epoch: int, records: bytes = b"", start: int = 0) -> None:
        super().__init__(records, start)
        self.epoch = epoch
        self.epochs = {0: epoch}
        self.session: dict[int, fetch.FetchPartition] = {}
        self.session_epoch = -1
        self.fetches = 0
        self.error = errors.NONE
        """The error of each partition in the next response."""

    def answer(self, request: fetch.FetchRequest | list_offsets.ListOffsetsRequest) -> Response:
        """Answer a Fetch or ListOffsets; all partitions have this one log."""
        if isinstance(request, list_offsets.ListOffsetsRequest):
            return self._offsets(request)
        self.fetches += 1
        if request.session_epoch == 0:
            self.session, self.session_epoch = {}, 0
        elif request.session_epoch != self.session_epoch:
            return fetch.FetchResponse(error_code=errors.InvalidFetchSessionEpochError.code)
        is_full = request.session_epoch == 0
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                del self.session[index]
        for topic in request.topics:
            self.session.update({one.partition: one for one in topic.partitions})
        self.session_epoch += 1
        found = [self._partition(one) for one in self.session.values()]
        sent = [one for one in found if is_full or one.records or one.error_code or _is_news(one)]
        self.error = errors.NONE
        return fetch.FetchResponse(
            session_id=1, responses=[fetch.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=sent)]
        )

    def _partition(self, asked: fetch.FetchPartition) -> fetch.PartitionData:
        answer = fetch.PartitionData(
            partition_index=asked.partition,
            high_watermark=self.high_watermark,
            log_start_offset=self.start,
            records=memoryview(b""),
        )
        if self.error:
            answer.error_code = self.error
        elif asked.current_leader_epoch != self.epoch:
            is_old = asked.current_leader_epoch < self.epoch
            answer.error_code = (errors.FencedLeaderEpochError if is_old else errors.UnknownLeaderEpochError).code
        elif not self.start <= asked.fetch_offset:
            answer.error_code = errors.OffsetOutOfRangeError.code
        elif asked.last_fetched_epoch >= 0 and self._diverges(asked):
            epoch, end_offset = self.end_of_epoch(asked.last_fetched_epoch)
            answer.diverging_epoch = fetch.EpochEndOffset(epoch=epoch, end_offset=end_offset)
        elif asked.fetch_offset > self.end:
            answer.error_code = errors.OffsetOutOfRangeError.code
        else:
            answer.records = memoryview(self.records[asked.fetch_offset - self.start :])
        return answer

    def _diverges(self, asked: fetch.FetchPartition) -> bool:
        epoch, end_offset = self.end_of_epoch(asked.last_fetched_epoch)
        return epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset

    def _offsets(self, request: list_offsets.ListOffsetsRequest) -> list_offsets.ListOffsetsResponse:
        (topic,) = request.topics
        answers = [
            list_offsets.ListOffsetsPartitionResponse(
                partition_index=one.partition_index,
                error_code=errors.NONE
                if one.current_leader_epoch == self.epoch
                else errors.FencedLeaderEpochError.code,
                offset=self.end if one.timestamp == -1 else self.start,
            )
            for one in topic.partitions
        ]
        return list_offsets.ListOffsetsResponse(
            topics=[list_offsets.ListOffsetsTopicResponse(name=topic.name, partitions=answers)]
        )


def _is_news(answer: fetch.PartitionData) -> bool:
    """Return whether a partition's response has a diverging epoch or a high watermark."""
    return answer.diverging_epoch.end_offset >= 0 or answer.high_watermark >= 0


def do_all(fetcher: LeaderFetcher, follower: ModelFollower, works: Iterable[Work]) -> None:
    """Execute the work of one response, and report the new positions to the fetcher."""
    for work in works:
        follower.do(work)
        fetcher.resume(work.key, work.leader_epoch, follower.position)
