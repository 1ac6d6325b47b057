"""The checks that a broker on a crashed disk still has everything that it has acknowledged, by requests of clients.

``durable`` (``flush.messages=1``): every acknowledged record, offset and transaction must be there. Otherwise records
and offsets may be those of an earlier time, without a gap and without another value at any offset. If the disk does not
keep the order of changes of names (``ordered`` is false), the first segments may be lost as well. Topics, configs,
quotas and credentials must be there in all cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.power.recording import NOW_MS, RETRIABLE, TOPIC_RESOURCE
from tests.support.power.story import Batch, Pair, Story, TopicStory
from tests.support.power.waiting import wait_until
from tests.support.share_client import RELEASE, ShareClient
from tidelog.client import Client
from tidelog.protocol.errors import CorruptMessageError
from tidelog.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tidelog.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidelog.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

Find = Callable[[str, bytes | None, bytes | None], list[int]]
"""A function of topic, key and tag that returns offsets according to the broker's indices, once they have caught up."""


@dataclass
class Found:
    """A partition's records as a consumer reads them, and its first and last offsets."""

    start: int
    end: int
    records: dict[int, Pair]
    has_gaps: bool


class Verdict:
    """The checks of one broker. They raise AssertionError, which names the fault."""

    def __init__(self, client: Client, story: Story, *, durable: bool, ordered: bool, find: Find | None = None) -> None:
        self.client = client
        self.story = story
        self.durable = durable
        self.ordered = ordered
        self.find = find
        self.transactions: dict[int, set[bool]] = {}
        """Transaction -> whether read_committed returns its records, in each of its partitions."""

    def examine(self) -> None:
        """Check everything that the story requires."""
        self.check_topics()
        self.check_settings()
        self.check_producer_ids()
        self.check_shares()
        if self.durable:
            self.end_transactions()
        for topic in self.story.topics.values():
            if topic.name in self.shown:
                for partition in range(self.shown[topic.name][1]):
                    self.check_partition(topic, partition)
        shown = [each for each in self.transactions.values() if len(each) > 1]
        assert not shown, f"transactions are shown in some partitions only: {self.transactions}"
        self.check_offsets()

    # ---- metadata

    def check_topics(self) -> None:
        """Check topics by name, id and number of partitions."""
        answer = self.client.send(MetadataRequest(topics=None), MetadataResponse, 10)
        self.shown = {topic.name: (bytes(topic.topic_id), len(topic.partitions)) for topic in answer.topics}
        for topic in self.story.topics.values():
            shown = self.shown.get(topic.name or "")
            assert topic.is_there is None or (shown is not None) == topic.is_there, f"{topic.name}: {shown}"
            if shown is not None:
                assert topic.topic_id in (None, shown[0]), f"{topic.name} has another id"
                assert shown[1] in topic.partitions, f"{topic.name} has {shown[1]} partitions of {topic.partitions}"

    def check_settings(self) -> None:
        """Check configs, quotas, credentials."""
        for topic in self.story.topics.values():
            for name, value in topic.configs.items() if topic.name in self.shown else ():
                assert (topic.name, name) in self.story.configs or self.config(topic.name, name) == value, name
        for (name_of, name), setting in self.story.configs.items():
            found = self.config(name_of, name)
            assert setting.acknowledged is None or setting.allows(found), f"{name_of} {name}: {found}, not {setting}"
        for client, quota in self.story.quotas.items():
            assert quota.allows(self.quota(client)), f"quota of {client}: {self.quota(client)}, not {quota}"
        for user, credential in self.story.credentials.items():
            iterations = self.credential(user)
            assert credential.allows(iterations), f"credential of {user}: {iterations}, not {credential}"

    def config(self, topic: str, name: str) -> str | None:
        resource = DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=[name])
        answer = self.client.send(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse, 1)
        return answer.results[0].configs[0].value if answer.results[0].configs else None

    def quota(self, client: str) -> float | None:
        component = ComponentData(entity_type="client-id", match_type=0, match=client)
        request = DescribeClientQuotasRequest(components=[component])
        entries = self.client.send(request, DescribeClientQuotasResponse, 0).entries or []
        return entries[0].values[0].value if entries else None

    def credential(self, user: str) -> int | None:
        request = DescribeUserScramCredentialsRequest(users=None)
        results = self.client.send(request, DescribeUserScramCredentialsResponse, 0).results
        return next((found.credential_infos[0].iterations for found in results if found.user == user), None)

    def check_producer_ids(self) -> None:
        """Check that an id is never given twice."""
        if self.story.producer_ids:
            given = self.init_producer(None)
            assert given not in self.story.producer_ids, f"producer id {given} was given before"

    def init_producer(self, transactional_id: str | None) -> int:
        answer = InitProducerIdResponse()

        def ask() -> bool:
            nonlocal answer
            request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
            answer = self.client.send(request, InitProducerIdResponse, 1)
            return answer.error_code not in RETRIABLE

        wait_until(ask)
        assert answer.error_code == 0, f"InitProducerId of {transactional_id}: error {answer.error_code}"
        return answer.producer_id

    def end_transactions(self) -> None:
        """End the open transactions by InitProducerId, as restarted producers do."""
        for name in self.story.transactional_ids:
            self.init_producer(name)

    # ---- records

    def check_partition(self, topic: TopicStory, partition: int) -> None:
        """Check everything that a consumer reads, then produce one more record."""
        where = f"{topic.name}-{partition}"
        batches = topic.batches.get(partition, [])
        found = self.read(topic.name, partition, committed=False)
        is_compacted = topic.configs.get("cleanup.policy") == "compact"
        asked = [pair for batch in batches for pair in batch.records]
        self.check_values(where, found, asked)
        assert is_compacted or not found.has_gaps, f"{where}: a gap in {sorted(found.records)}"
        may_begin_later = "retention.bytes" in topic.configs or not (self.durable or self.ordered)
        assert found.start <= topic.deleted_before or may_begin_later, f"{where} begins at {found.start}"
        for batch in batches:
            self.check_batch(where, found, batch, asked if is_compacted else None)
        if self.durable:
            self.check_transactions(topic, partition, batches)
            self.check_duplicate(topic, partition, batches)
        if self.find is not None:
            self.check_indices(topic, found)
        expected = self.offset(topic.name, partition, -1)
        assert expected >= found.end, f"{where} ends at {expected}, before {found.end}"
        end = self.produce(topic.name, partition, [(b"key", b"afterwards")], BatchOptions())
        assert end == expected, f"{where}: the next record got {end}, not {expected}"

    def check_values(self, where: str, found: Found, asked: list[Pair]) -> None:
        """Check that each record was sent by a client, and is there once."""
        values = list(found.records.values())
        strange = [pair for pair in values if pair not in asked]
        assert not strange, f"{where}: no client wrote {strange[:3]}"
        assert len(values) == len(set(values)), f"{where}: a record is there twice"

    def check_batch(self, where: str, found: Found, batch: Batch, written: list[Pair] | None) -> None:
        """Check that the records of an acknowledged batch are at their offsets.

        With ``written``, all records of a compacted topic, a record with a later one of its key may be missing.
        """
        if batch.offset is None:
            return
        for number, pair in enumerate(batch.records, batch.offset):
            got = found.records.get(number)
            assert got in (None, pair), f"{where}: offset {number} has {got}, not {pair}"
            if not self.durable or got is not None or number < found.start:
                continue
            superseded = written is not None and any(key == pair[0] for key, _ in written[written.index(pair) + 1 :])
            assert superseded, f"{where}: offset {number} was acknowledged and is not there (ends at {found.end})"

    def check_transactions(self, topic: TopicStory, partition: int, batches: list[Batch]) -> None:
        """Check that read_committed returns all records of committed transactions, and none of aborted ones."""
        if all(batch.transaction < 0 for batch in batches):
            return
        wait_until(lambda: self.has_settled(topic.name, partition))
        shown = set(self.read(topic.name, partition, committed=True).records.values())
        for batch in batches:
            there = shown.issuperset(batch.records)
            assert there or shown.isdisjoint(batch.records), f"a part of transaction {batch.transaction} is shown"
            if batch.offset is not None and batch.transaction in self.story.ends:
                self.transactions.setdefault(batch.transaction, set()).add(there)
            commit, acknowledged = self.story.ends.get(batch.transaction, (False, False))
            where = f"{topic.name}-{partition}: transaction {batch.transaction}"
            assert commit or not there, f"{where} was not committed and is shown"
            assert there or not (commit and acknowledged), f"{where} was committed and is not shown"

    def has_settled(self, topic: str, partition: int) -> bool:
        """Return whether no transaction is open."""
        data = self.fetch(topic, partition, self.offset(topic, partition, -2), committed=True)
        return data.last_stable_offset == data.high_watermark

    def check_duplicate(self, topic: TopicStory, partition: int, batches: list[Batch]) -> None:
        """Check that an idempotent producer may repeat its unacknowledged batches, in order, or else its last batch,
        which gets the same offset again."""
        last: dict[int, list[Batch]] = {}
        for batch in batches:
            if batch.producer[0] >= 0 and batch.transaction < 0:
                before = last.get(batch.producer[0], []) if batch.offset is None else []
                last[batch.producer[0]] = [*(each for each in before if each.offset is None), batch]
        for batch in (each for repeated in last.values() for each in repeated):
            producer_id, epoch, sequence = batch.producer
            options = BatchOptions(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
            pairs = [(None if key is None else key.encode(), value.encode()) for key, value in batch.records]
            offset = self.produce(topic.name, partition, pairs, options)
            assert batch.offset in (None, offset), f"a retry got offset {offset}, not {batch.offset}"

    def check_indices(self, topic: TopicStory, found: Found) -> None:
        """Check that look-ups by key find the same offsets as a scan."""
        assert self.find is not None
        if topic.configs.get("index.keys") == "true":
            for key in ("k3", "missing"):
                wanted = [offset for offset, pair in found.records.items() if pair[0] == key]
                looked_up = self.find(topic.name, key.encode(), None)
                assert sorted(looked_up) == wanted, f"key {key}: {sorted(looked_up)}, not {wanted}"

    def produce(
        self, topic: str, partition: int, pairs: list[tuple[bytes | None, bytes]], options: BatchOptions
    ) -> int:
        """Produce a batch; return its first offset."""
        batch = build_batch([Record(i, NOW_MS + i, key, value) for i, (key, value) in enumerate(pairs)], options)
        data = [PartitionProduceData(index=partition, records=memoryview(batch))]
        topics = [TopicProduceData(name=topic, partition_data=data)]
        request = ProduceRequest(acks=-1, timeout_ms=9000, topic_data=topics)
        answer = self.client.send(request, ProduceResponse, 7).responses[0].partition_responses[0]
        assert answer.error_code == 0, f"producing to {topic}-{partition}: error {answer.error_code}"
        return answer.base_offset

    def offset(self, topic: str, partition: int, timestamp: int) -> int:
        """Send ListOffsets."""
        wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])
        answer = self.client.send(request, ListOffsetsResponse, 2).topics[0].partitions[0]
        assert answer.error_code == 0, f"ListOffsets of {topic}-{partition}: error {answer.error_code}"
        return answer.offset

    def fetch(self, topic: str, partition: int, offset: int, *, committed: bool) -> PartitionData:
        """Send one Fetch."""
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=int(committed),
            session_epoch=-1, topics=[FetchTopic(topic=topic, partitions=[wanted])],
        )  # fmt: skip
        data = self.client.send(request, FetchResponse, 7).responses[0].partitions[0]
        assert data.error_code == 0, f"fetching {topic}-{partition} at {offset}: error {data.error_code}"
        return data

    def read(self, topic: str, partition: int, *, committed: bool) -> Found:
        """Read all records of a partition as a consumer gets them."""
        start = next_offset = self.offset(topic, partition, -2)
        found = Found(start, start, {}, has_gaps=False)
        while True:
            data = self.fetch(topic, partition, next_offset, committed=committed)
            aborted = sorted((entry.first_offset, entry.producer_id) for entry in data.aborted_transactions or ())
            records = data.records or b""
            assert isinstance(records, bytes | memoryview)
            before = next_offset
            try:
                next_offset = take_batches(found, records, aborted, next_offset)
            except CorruptMessageError as error:
                raise AssertionError(f"{topic}-{partition}: {error}") from error
            if next_offset == before:
                found.end = self.offset(topic, partition, -1)
                found.has_gaps |= not committed and found.end != next_offset
                return found

    # ---- groups

    def check_shares(self) -> None:
        """Check that share groups get no accepted or rejected record again, and all others."""
        for (group, topic), acknowledged in self.story.shares.items():
            member = ShareClient(self.client, group, (topic, self.shown[topic][0]), "afterwards")
            member.join()
            delivered: set[int] = set()
            while runs := member.fetch():
                delivered |= {offset for run in runs for offset in range(run.first, run.last + 1)}
            done = {offset for offset, (kind, is_answered) in acknowledged.items() if kind != RELEASE and is_answered}
            assert not delivered & done, f"{group}: {sorted(delivered & done)} were acknowledged and come again"
            batches = [batch for batch in self.story.topics[topic].batches.get(0, []) if batch.offset is not None]
            written = {batch.offset + i for batch in batches if batch.offset is not None
                       for i in range(len(batch.records))}  # fmt: skip
            maybe_done = {offset for offset, (kind, _) in acknowledged.items() if kind != RELEASE}
            lost = written - maybe_done - delivered
            assert not lost, f"{group}: {sorted(lost)} are not delivered"

    def check_offsets(self) -> None:
        """Check committed offsets of groups."""
        for (group, topic), setting in self.story.offsets.items():
            found = self.committed_offset(group, topic)
            if self.durable:
                wanted: object = (setting.acknowledged, *setting.asked)
                assert setting.allows(None if found < 0 else found), f"{group}: {found}, not {wanted}"
            else:
                assert found < 0 or found in setting.ever, f"{group}: {found} was never committed"

    def committed_offset(self, group: str, topic: str) -> int:
        """Return a group's committed offset; -1 if there is none."""
        request = OffsetFetchRequest(
            group_id=group, topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
        )
        answer = OffsetFetchResponse()

        def ask() -> bool:
            nonlocal answer
            answer = self.client.send(request, OffsetFetchResponse, 5)
            return answer.error_code not in RETRIABLE

        wait_until(ask)
        assert answer.error_code == 0, f"OffsetFetch of {group}: error {answer.error_code}"
        return answer.topics[0].partitions[0].committed_offset


def take_batches(found: Found, records: bytes | memoryview, aborted: list[tuple[int, int]], next_offset: int) -> int:
    """Add a fetch's records, as a consumer would read them, to ``found``; return the next offset.

    Raises CorruptMessageError.
    """
    open_aborted: set[int] = set()
    for batch in iter_batches(records):
        batch.ensure_valid()
        header: Any = batch
        if batch.last_offset < next_offset:
            continue
        found.has_gaps |= header.base_offset > next_offset
        while aborted and aborted[0][0] <= batch.last_offset:
            open_aborted.add(aborted.pop(0)[1])
        next_offset = batch.last_offset + 1
        if header.is_control:
            open_aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in open_aborted):
            kept = [record for record in batch.records() if record.offset >= found.start]
            found.records |= {record.offset: pair_of(record) for record in kept}
    return next_offset


def pair_of(record: Record) -> Pair:
    """Decode key and value as text."""
    return None if record.key is None else bytes(record.key).decode(), bytes(record.value or b"").decode()


def examine(port: int, story: Story, settings: Mapping[str, str], *, ordered: bool, find: Find | None = None) -> None:
    """Check the broker at ``port``, which runs with these settings. Raises AssertionError."""
    durable = settings.get("log.flush.interval.messages") == "1"
    with Client(f"127.0.0.1:{port}", timeout_s=30) as client:
        Verdict(client, story, durable=durable, ordered=ordered, find=find).examine()
