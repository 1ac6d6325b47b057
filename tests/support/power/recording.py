"""A broker under the recorder, and a client that notes its requests and their acknowledgements in the trace.

The client writes one note before it sends a request, and another after the response. So at each point of the trace it
is known which requests were acknowledged, and which may have been executed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tests.support.broker import TidelogProcess
from tests.support.power.trace import append_note
from tests.support.power.waiting import wait_until
from tests.support.preloaded import compiled
from tests.support.raw_client import connect, frame, receive_produced
from tests.support.share_client import Run, ShareClient, read_from_earliest
from tidelog.client import Client
from tidelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tidelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from tidelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)
from tidelog.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidelog.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch
from tidelog.protocol.schema.fields import Message

SOURCE = Path(__file__).with_name("recorder.c")
NOW_MS = 1_700_000_000_000
TOPIC_RESOURCE = 2
TRANSACTIONAL_ID = "payments"
RETRIABLE = frozenset({14, 15, 16, 51})
"""Error codes: the coordinator loads, is not available, or is another broker; a transaction is still being ended."""
_Response = TypeVar("_Response", bound=Message)


def recording(root: Path, trace: Path) -> dict[str, str]:
    """Return the variables of a process whose effects on files below ``root`` are recorded in ``trace``."""
    return {"LD_PRELOAD": str(compiled(SOURCE)), "POWER_ROOT": str(root), "POWER_TRACE": str(trace)}


class RecordedBroker(TidelogProcess):
    """A broker whose effects on files below ``root`` are recorded in ``trace``; it creates its data directory there."""

    def __init__(self, directory: Path, overrides: Mapping[str, str]) -> None:
        super().__init__(directory, overrides)
        self.root = directory / "disk"
        self.root.mkdir()
        self.data_directory = self.root / "data"
        self.trace = directory / "trace"
        self.trace.touch()

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **recording(self.root, self.trace)}


Pairs = list[tuple[bytes | None, bytes]]
"""Keys and values of a batch."""


def request_of(topic: str, pairs: Pairs, partition: int, options: BatchOptions) -> ProduceRequest:
    """Build the Produce request for one batch, with acks=all."""
    batch = build_batch([Record(i, NOW_MS + i, key, value) for i, (key, value) in enumerate(pairs)], options)
    data = [PartitionProduceData(index=partition, records=memoryview(batch))]
    return ProduceRequest(
        acks=-1, timeout_ms=9000, topic_data=[TopicProduceData(name=topic, partition_data=data)],
        transactional_id=TRANSACTIONAL_ID if options.is_transactional else None,
    )  # fmt: skip


class Asker:
    """A client of the broker that notes its requests, with one connection, for one thread."""

    _numbers = itertools.count()

    def __init__(self, broker: RecordedBroker) -> None:
        self._trace = broker.trace
        self._port = broker.port
        self._client = Client(broker.bootstrap, timeout_s=30)

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    # ---- notes

    def begin(self, what: str, **arguments: Any) -> int:
        """Note a request; returns its number."""
        number = next(self._numbers)
        append_note(self._trace, {"number": number, "what": what, **arguments})
        return number

    def acknowledged(self, number: int, **result: Any) -> None:
        """Note that the request with this number was acknowledged."""
        append_note(self._trace, {"acknowledged": number, **result})

    def ask(self, request: Message, response: type[_Response], version: int) -> _Response:
        """Send a request without a note."""
        return self._client.send(request, response, version)

    # ---- topics and configs

    def create(self, topic: str, partitions: int = 1, **configs: str) -> bytes:
        """Create a topic; ``configs`` have underscores for dots in their names. Returns the topic's id."""
        named = {name.replace("_", "."): value for name, value in configs.items()}
        number = self.begin("create", topic=topic, partitions=partitions, configs=named)
        entries = [CreatableTopicConfig(name=name, value=value) for name, value in named.items()]
        new = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1, configs=entries)
        result = self.ask(CreateTopicsRequest(topics=[new]), CreateTopicsResponse, 7).topics[0]
        assert result.error_code == 0, result
        self.acknowledged(number, topic_id=bytes(result.topic_id).hex())
        return bytes(result.topic_id)

    def widen(self, topic: str, count: int) -> None:
        """Send CreatePartitions: the topic has ``count`` partitions then."""
        number = self.begin("widen", topic=topic, partitions=count)
        wanted = CreatePartitionsTopic(name=topic, count=count, assignments=None)
        answer = self.ask(CreatePartitionsRequest(topics=[wanted], timeout_ms=9000), CreatePartitionsResponse, 1)
        assert answer.results[0].error_code == 0, answer
        self.acknowledged(number)

    def delete(self, topic: str) -> None:
        """Send DeleteTopics."""
        number = self.begin("delete", topic=topic)
        request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=9000)
        answer = self.ask(request, DeleteTopicsResponse, 3)
        assert answer.responses[0].error_code == 0, answer
        self.acknowledged(number)

    def configure(self, topic: str, name: str, value: str) -> None:
        """Set one config of a topic."""
        number = self.begin("configure", topic=topic, name=name, value=value)
        config = AlterableConfig(name=name, config_operation=0, value=value)
        resource = AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic, configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        assert self.ask(request, IncrementalAlterConfigsResponse, 0).responses[0].error_code == 0
        self.acknowledged(number)

    def set_quota(self, client_id: str, value: float) -> None:
        """Set a client's producer_byte_rate."""
        number = self.begin("quota", client=client_id, value=value)
        entity = EntityData(entity_type="client-id", entity_name=client_id)
        entry = EntryData(entity=[entity], ops=[OpData(key="producer_byte_rate", value=value, remove=False)])
        answer = self.ask(AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse, 0)
        assert answer.entries[0].error_code == 0, answer
        self.acknowledged(number)

    def set_credential(self, user: str, iterations: int) -> None:
        """Set a SCRAM-SHA-256 credential."""
        number = self.begin("credential", user=user, iterations=iterations)
        credential = ScramCredentialUpsertion(
            name=user, mechanism=1, iterations=iterations, salt=b"salt" * 4, salted_password=b"p" * 32
        )
        request = AlterUserScramCredentialsRequest(upsertions=[credential])
        assert self.ask(request, AlterUserScramCredentialsResponse, 0).results[0].error_code == 0
        self.acknowledged(number)

    # ---- records

    def produce(
        self, topic: str, records: Iterable[tuple[bytes | None, bytes]], partition: int = 0,
        options: BatchOptions | None = None, transaction: int = -1,
    ) -> int:  # fmt: skip
        """Produce a batch of (key, value), acks=all; return its first offset."""
        pairs, options = list(records), options or BatchOptions()
        number = self._begin_batch(topic, pairs, partition, options, transaction)
        offset = self.send_batch(topic, pairs, partition, options)
        self.acknowledged(number, offset=offset)
        return offset

    def _begin_batch(self, topic: str, pairs: Pairs, partition: int, options: BatchOptions, transaction: int) -> int:
        noted = [[None if key is None else key.decode(), value.decode()] for key, value in pairs]
        producer = [options.producer_id, options.producer_epoch, options.base_sequence]
        return self.begin(
            "produce", topic=topic, partition=partition, records=noted, producer=producer, transaction=transaction
        )

    def produce_in_line(self, topic: str, batches: Iterable[tuple[Pairs, BatchOptions]]) -> None:
        """Produce batches to partition 0 with acks=all: all are sent before the first response is read."""
        with connect(self._port) as connection:
            numbers = []
            for pairs, options in batches:
                numbers.append(self._begin_batch(topic, pairs, 0, options, -1))
                connection.sendall(frame(0, 7, len(numbers), request_of(topic, pairs, 0, options).encode(7)))
            for correlation_id, number in enumerate(numbers, 1):
                answered, error, offset = receive_produced(connection)
                assert (answered, error) == (correlation_id, 0)
                self.acknowledged(number, offset=offset)

    def send_batch(self, topic: str, pairs: Pairs, partition: int, options: BatchOptions) -> int:
        """Produce without a note; return the first offset."""
        request = request_of(topic, pairs, partition, options)
        answer = self.ask(request, ProduceResponse, 7).responses[0].partition_responses[0]
        assert answer.error_code == 0, f"{topic}-{partition}: error {answer.error_code}"
        return answer.base_offset

    def delete_records(self, topic: str, before: int) -> None:
        """Send DeleteRecords for partition 0."""
        number = self.begin("delete records", topic=topic, before=before)
        wanted = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=before)])
        answer = self.ask(DeleteRecordsRequest(topics=[wanted], timeout_ms=9000), DeleteRecordsResponse, 1)
        assert answer.topics[0].partitions[0].error_code == 0, answer
        self.acknowledged(number)

    # ---- groups, producers, transactions

    def commit_offset(self, group: str, topic: str, offset: int) -> None:
        """Commit a group's offset for partition 0; the group has no members."""
        number = self.begin("commit", group=group, topic=topic, offset=offset)
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        request = OffsetCommitRequest(
            group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])]
        )
        self.until_answered(
            lambda: self.ask(request, OffsetCommitResponse, 7).topics[0].partitions[0].error_code,
        )
        self.acknowledged(number)

    def share(self, group: str, topic: str, topic_id: bytes, member_id: str) -> ShareClient:
        """Join a share group that begins with the first record."""
        read_from_earliest(self._client, group)
        member = ShareClient(self._client, group, (topic, topic_id), member_id)
        member.join()
        return member

    def acknowledge(self, member: ShareClient, share: tuple[str, str], run: Run, kind: int) -> None:
        """Acknowledge acquired records of a share group; ``share`` has the group and the topic."""
        offsets = list(range(run.first, run.last + 1))
        number = self.begin("share", group=share[0], topic=share[1], offsets=offsets, kind=kind)
        assert member.acknowledge(run.first, run.last, kind) == 0
        self.acknowledged(number)

    def init_producer(self, transactional_id: str | None = None) -> tuple[int, int]:
        """Send InitProducerId; return the producer's id and epoch."""
        number = self.begin("producer", transactional_id=transactional_id)
        answer = InitProducerIdResponse()

        def ask() -> int:
            nonlocal answer
            request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
            answer = self.ask(request, InitProducerIdResponse, 3)
            return answer.error_code

        self.until_answered(ask)
        self.acknowledged(number, producer_id=answer.producer_id, epoch=answer.producer_epoch)
        return answer.producer_id, answer.producer_epoch

    def add_to_transaction(self, name: str, producer: tuple[int, int], topic: str, partitions: list[int]) -> None:
        """Send AddPartitionsToTxn."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name, v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=partitions)],
        )  # fmt: skip
        self.until_answered(
            lambda: max(
                partition.partition_error_code
                for found in self.ask(request, AddPartitionsToTxnResponse, 1).results_by_topic_v3_and_below
                for partition in found.results_by_partition
            )
        )

    def end_transaction(self, name: str, producer: tuple[int, int], transaction: int, *, commit: bool) -> None:
        """Send EndTxn; ``transaction`` is the transaction's number in the notes."""
        number = self.begin("end", transaction=transaction, commit=commit)
        request = EndTxnRequest(
            transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], committed=commit
        )
        self.until_answered(lambda: self.ask(request, EndTxnResponse, 1).error_code)
        self.acknowledged(number)

    @staticmethod
    def until_answered(ask: Any) -> None:
        """Repeat a request while the coordinator is not ready. Raises AssertionError for another error."""
        codes: list[int] = []

        def try_it() -> bool:
            codes.append(ask())
            return codes[-1] not in RETRIABLE

        wait_until(try_it)
        assert codes[-1] == 0, f"error {codes[-1]}"
