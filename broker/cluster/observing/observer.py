"""Observer of a KRaft quorum: follows ``__cluster_metadata-0`` and builds images from its committed records.

One request is in flight at a time::

    question = observer.next_question()          # send question.request to question.address, from not_before_ms on
    published = observer.take_answer(response, now_ms)        # or observer.take_failure(reason, now_ms)

Fetch finds the leader: each answer names the leader, epoch and endpoint that the controller knows. Only records below
the high watermark are replayed. A snapshot replaces the image, and is published as its difference from the image
before. Sans-io, not thread-safe.

Source: KafkaRaftClient and RaftUtil of Kafka 4.3; KIP-595, KIP-630, KIP-853, KIP-1166.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from tidelog.broker.cluster.observing.image_difference import difference
from tidelog.broker.cluster.observing.metadata_position import NOWHERE, UNKNOWN_TIME, KnownRecord, MetadataPosition
from tidelog.broker.cluster.observing.metadata_tail import FetchPosition, MetadataLostError, MetadataTail
from tidelog.broker.cluster.observing.snapshot_download import SnapshotDownload, complete_batches
from tidelog.broker.cluster.quorum import Address, QuorumView
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.broker.metadata.replay import MetadataReplay, PublishedImage, SnapshotId
from tidelog.broker.metadata.snapshot import SnapshotContent
from tidelog.protocol import errors
from tidelog.protocol.messages import fetch, fetch_snapshot
from tidelog.protocol.types import METADATA_TOPIC_ID, ZERO_UUID, Buffer

METADATA_TOPIC = "__cluster_metadata"
NO_REPLICA_ID = -1
UNKNOWN_HIGH_WATERMARK = -1
MAX_WAIT_MS = 500
MAX_BYTES = 8 * 1024 * 1024
"""Largest answer in bytes, as Kafka's own followers of a quorum have it (MAX_FETCH_SIZE_BYTES)."""
FIRST_BACKOFF_MS = 50
MAX_BACKOFF_MS = 1000

_REFUSALS = (
    errors.ClusterAuthorizationFailedError,
    errors.InconsistentClusterIdError,
    errors.UnsupportedVersionError,
)
"""Errors after which a retry is useless."""
_SNAPSHOT_GONE = {errors.SnapshotNotFoundError.code, errors.PositionOutOfRangeError.code}
"""Codes after which the download of a snapshot is given up."""


class ObserverError(Exception):
    """A controller refuses this observer for good."""


class ObserverConfig(NamedTuple):
    """Settings of an observer: bootstrap addresses, identity, limits. The quorum does not list an observer that has no
    replica id.

    ``last_position`` is the position up to which an earlier process has acted: a quorum that has another record there
    is refused.
    """

    bootstrap: tuple[Address, ...]
    replica_id: int = NO_REPLICA_ID
    directory_id: bytes = ZERO_UUID
    cluster_id: str | None = None
    max_bytes: int = MAX_BYTES
    last_position: MetadataPosition = NOWHERE


class Question(NamedTuple):
    """A request, the controller to ask, and the earliest time to do so."""

    address: Address
    request: fetch.FetchRequest | fetch_snapshot.FetchSnapshotRequest
    not_before_ms: float


_Partition = fetch.PartitionData | fetch_snapshot.PartitionSnapshotResponse


class Observer:
    """State of an observer: leader, fetch position, uncommitted tail, snapshot download, replay."""

    def __init__(self, config: ObserverConfig) -> None:
        self.quorum = QuorumView(config.bootstrap)
        self.high_watermark = UNKNOWN_HIGH_WATERMARK
        self.is_caught_up = False
        """True if the leader's last answer showed that the image has all committed records."""
        self.last_failure = ""
        """The reason why the last request failed, as text for error messages; empty after one that succeeded."""
        self._config = config
        self._replay = MetadataReplay()
        self._tail = MetadataTail(FetchPosition(0, 0))
        self._download: SnapshotDownload | None = None
        self._known = KnownRecord(config.last_position)
        self._is_looking_back = False
        """True if the last request fetches at the known record's offset, not at the end of the tail."""
        self._snapshot_offset = -1
        """Offset of the image that the last snapshot gave; its last record has no known time."""
        self._not_before_ms = 0.0
        self._backoff_ms = FIRST_BACKOFF_MS

    @property
    def image(self) -> MetadataImage:
        """The newest image."""
        return self._replay.image

    @property
    def is_checked(self) -> bool:
        """False while a snapshot has replaced the known record, and a Fetch at its own offset is still needed.

        It is also True before the replay has reached the record: ask for ``is_caught_up`` and the image's offset, too.
        """
        return self._known.passed_by is None

    def position_of(self, image: MetadataImage) -> MetadataPosition:
        """Return the position of an image that was published."""
        is_of_snapshot = image.offset <= self._snapshot_offset
        return MetadataPosition(image.epoch, image.offset, UNKNOWN_TIME if is_of_snapshot else image.timestamp_ms)

    def next_question(self) -> Question:
        """Return the next request. ``take_answer`` or ``take_failure`` must follow before the next call."""
        return Question(self.quorum.address, self._next_request(), self._not_before_ms)

    def _next_request(self) -> fetch.FetchRequest | fetch_snapshot.FetchSnapshotRequest:
        self._is_looking_back = False
        if self._download is not None:
            return self._snapshot_request(self._download)
        passed_by = self._known.passed_by
        if passed_by is None:
            return self._fetch_request(self._tail.end)
        self._is_looking_back = True  # a leader answers an epoch older than its snapshot's with the snapshot only
        return self._fetch_request(FetchPosition(self._known.offset, passed_by.epoch))

    def take_failure(self, reason: str, now_ms: float) -> None:
        """Note that a request brought no usable answer. After a pause, the next bootstrap address is asked."""
        self.last_failure = reason
        self.is_caught_up = False
        self.quorum.lose_leader()
        self._not_before_ms = now_ms + self._backoff_ms
        self._backoff_ms = min(2 * self._backoff_ms, MAX_BACKOFF_MS)

    def take_answer(
        self, response: fetch.FetchResponse | fetch_snapshot.FetchSnapshotResponse, now_ms: float
    ) -> PublishedImage | None:
        """Take the answer to the last question; return the new image, if the answer leads to one.

        Raises ObserverError if the controller refuses this observer, and MetadataLostError. Committed records that
        cannot be replayed raise CorruptMessageError, or UnsupportedVersionError if a newer Kafka wrote them. A damaged
        answer raises no CorruptMessageError: it counts as a failed request.
        """
        partition = self._good_partition(response, now_ms)
        if partition is None:
            return None
        try:
            if isinstance(partition, fetch.PartitionData):
                if self._is_looking_back:
                    self._take_known(partition)
                    return None
                fetched = self._take_fetched(partition)
            else:
                return self._take_piece(partition)
        except errors.CorruptMessageError as error:
            self._download = None
            self.take_failure(f"{self.quorum.address}: {error}", now_ms)
            return None
        return self._replay_committed() if fetched else None

    def _good_partition(
        self, response: fetch.FetchResponse | fetch_snapshot.FetchSnapshotResponse, now_ms: float
    ) -> _Partition | None:
        """Return the partition that the leader's answer has; None after an error, or if another controller answered."""
        asked = self.quorum.address
        partition = _only_partition(response)
        has_changed = partition is not None and self._learn_leader(response, partition)
        code = response.error_code or (partition.error_code if partition is not None else 0)
        if code in _SNAPSHOT_GONE:
            self._download = None
        if code:
            self._take_error(code, asked, has_changed, now_ms)
            return None
        if partition is None or self.quorum.epoch > _epoch_of(partition):
            self.take_failure(f"{asked} knows only an older leader epoch, or no leader", now_ms)
            return None
        self._note_success(asked)
        return partition

    def _note_success(self, asked: Address) -> None:
        self.quorum.confirm(asked)
        self.last_failure = ""
        self._not_before_ms = 0.0
        self._backoff_ms = FIRST_BACKOFF_MS

    def _learn_leader(
        self, response: fetch.FetchResponse | fetch_snapshot.FetchSnapshotResponse, partition: _Partition
    ) -> bool:
        endpoints = {node.node_id: Address(node.host, node.port) for node in response.node_endpoints}
        leader = partition.current_leader
        has_changed = self.quorum.learn(leader.leader_id, leader.leader_epoch, endpoints)
        if self._download is not None and self._download.leader_epoch != self.quorum.epoch:
            self._download = None
        return has_changed

    def _take_error(self, code: int, asked: Address, has_changed: bool, now_ms: float) -> None:
        """Ask again after an error: at once where the answer named another leader, else later. Raises ObserverError."""
        error = errors.error_for_code(code)
        reason = f"{asked} answers {error.__name__.removesuffix('Error')} ({code}): {error.default_message}"
        if error in _REFUSALS:
            raise ObserverError(reason)
        if has_changed:
            self.last_failure = reason
            self.is_caught_up = False
            self._not_before_ms = now_ms
        else:
            self.take_failure(reason, now_ms)

    def _take_fetched(self, partition: fetch.PartitionData) -> bool:
        """Take a Fetch answer's content; return whether the leader confirmed the position, so that its high watermark
        counts.
        """
        diverging, snapshot = partition.diverging_epoch, partition.snapshot_id
        self.is_caught_up = False
        if diverging.epoch >= 0:
            self._tail.truncate(diverging.epoch, diverging.end_offset)
            return False
        if snapshot.epoch >= 0:
            self._begin_download(SnapshotId(snapshot.end_offset, snapshot.epoch))
            return False
        for batch in complete_batches(cast(Buffer, partition.records or b"")):
            self._tail.append(batch)
        self.high_watermark = max(self.high_watermark, partition.high_watermark)
        self.is_caught_up = 0 < partition.high_watermark <= self._tail.end.offset
        return True

    def _take_known(self, partition: fetch.PartitionData) -> None:
        """Compare the leader's record at the known position. Raises MetadataLostError, CorruptMessageError."""
        snapshot = partition.snapshot_id
        if snapshot.epoch >= 0:
            self._known.compare_snapshot(SnapshotId(snapshot.end_offset, snapshot.epoch))
        for batch in complete_batches(cast(Buffer, partition.records or b"")):
            self._known.compare_batch(batch)
        self._known.end()

    def _begin_download(self, snapshot: SnapshotId) -> None:
        committed = self._tail.committed
        if snapshot.end_offset <= committed.offset:
            raise MetadataLostError(
                f"the leader's log begins with the snapshot {snapshot.file_name()} and does not continue what was "
                f"committed up to offset {committed.offset - 1} of epoch {committed.epoch}"
            )
        self._download = SnapshotDownload(snapshot, self.quorum.epoch)

    def _replay_committed(self) -> PublishedImage | None:
        for batch in self._tail.take_committed(self.high_watermark):
            self._known.compare_batch(batch)
            self._replay.take_batch(batch)
        return self._replay.publish()

    def _take_piece(self, partition: fetch_snapshot.PartitionSnapshotResponse) -> PublishedImage | None:
        """Add a piece of the snapshot; return its image when the snapshot is complete."""
        download = self._download
        if download is None:
            return None
        piece = cast(Buffer, partition.unaligned_records)
        content = download.take_piece(partition.position, piece, partition.size)
        return None if content is None else self._replace_image(download.snapshot, content)

    def _replace_image(self, snapshot: SnapshotId, content: SnapshotContent) -> PublishedImage:
        self._known.compare_snapshot(snapshot)
        published = PublishedImage(difference(self.image, content.image), content.image)
        self._snapshot_offset = content.image.offset
        self._download = None
        self._replay = MetadataReplay(content.image)
        self._tail = MetadataTail(FetchPosition(snapshot.end_offset, snapshot.epoch))
        self.high_watermark = max(self.high_watermark, snapshot.end_offset)
        return published

    def _fetch_request(self, position: FetchPosition) -> fetch.FetchRequest:
        partition = fetch.FetchPartition(
            partition=0,
            current_leader_epoch=self.quorum.epoch,
            fetch_offset=position.offset,
            last_fetched_epoch=position.epoch,
            log_start_offset=0,
            partition_max_bytes=self._config.max_bytes,
            replica_directory_id=self._config.directory_id,
            high_watermark=self.high_watermark,
        )
        return fetch.FetchRequest(
            cluster_id=self._config.cluster_id,
            replica_state=fetch.ReplicaState(replica_id=self._config.replica_id),
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=0,
            max_bytes=self._config.max_bytes,
            topics=[fetch.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
        )

    def _snapshot_request(self, download: SnapshotDownload) -> fetch_snapshot.FetchSnapshotRequest:
        snapshot = download.snapshot
        partition = fetch_snapshot.PartitionSnapshot(
            partition=0,
            current_leader_epoch=self.quorum.epoch,
            snapshot_id=fetch_snapshot.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
            position=download.position,
            replica_directory_id=self._config.directory_id,
        )
        return fetch_snapshot.FetchSnapshotRequest(
            cluster_id=self._config.cluster_id,
            replica_id=self._config.replica_id,
            max_bytes=self._config.max_bytes,
            topics=[fetch_snapshot.TopicSnapshot(name=METADATA_TOPIC, partitions=[partition])],
        )


def _only_partition(response: fetch.FetchResponse | fetch_snapshot.FetchSnapshotResponse) -> _Partition | None:
    """Return the partition that an answer is about, None without one."""
    if isinstance(response, fetch.FetchResponse):
        fetched = [partition for topic in response.responses for partition in topic.partitions]
        return fetched[0] if fetched else None
    pieces = [partition for topic in response.topics for partition in topic.partitions]
    return pieces[0] if pieces else None


def _epoch_of(partition: _Partition) -> int:
    return partition.current_leader.leader_epoch
