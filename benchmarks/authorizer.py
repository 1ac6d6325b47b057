"""CPU of one request with and without an authorizer: ``python -m benchmarks.authorizer``.

One connection's single-record produce, fetch at the end of the log, and Metadata, dispatched in process: without an
authorizer, and with 10,000 ACLs of which a prefixed one allows it. Both are measured right after each other in many
short turns: the medians in microseconds of process time, and the median of the turns' ratios.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.questions import build
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker, batch
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.broker.loop.log_openings import opening_expected
from tidelog.broker.metadata.image_records import VersionedRecord, acl_record
from tidelog.broker.metadata.metadata_image import AccessRule
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.security.principal import Principal
from tidelog.protocol.acl import AclOperation, AclPermissionType, PatternType, ResourceType
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.header import RequestHeader, encode_request_header
from tidelog.protocol.messages.fetch import FetchRequest
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.protocol.messages.produce import ProduceRequest
from tidelog.protocol.schema.fields import Message
from tidelog.protocol.transferable import release_slices

TOPIC = "team-7.orders"
ACLS = 10_000
REQUESTS = 250
ROUNDS = 200
VERSIONS = {ApiKey.PRODUCE: 9, ApiKey.FETCH: 11, ApiKey.METADATA: 9}


class Side:
    """A broker, a connection to it, and the frames that are sent."""

    def __init__(self, directory: Path, texts: dict[str, str]) -> None:
        self.data = DataBroker(directory, texts)
        with opening_expected():
            create_topic(self.data, TOPIC, 1)
        if self.data.broker.metadata.find(TOPIC) is None:
            raise RuntimeError("the topic is not there: refusals would be measured")
        for number in range(ACLS if texts else 0):
            self._allow(number)
        self.dispatcher = Dispatcher(self.data.broker)
        self.context = RequestContext()
        self.context.principal = Principal("User", "ann")

    def _allow(self, number: int) -> None:
        """Most rules are other teams'; each tenth is a prefix."""
        name, pattern = (
            (f"team-{number}.", PatternType.PREFIXED) if number % 10 == 7 else (f"t{number}", PatternType.LITERAL)
        )
        user = "User:ann" if number == 7 else f"User:u{number % 100}"
        rule = AccessRule(ResourceType.TOPIC, name, pattern, user, "*", AclOperation.ALL, AclPermissionType.ALLOW)
        record = VersionedRecord(acl_record(number.to_bytes(16, "big"), rule))
        self.data.broker.controller.commit([record])

    def microseconds(self, frame: bytes) -> float:
        """CPU of one of REQUESTS such requests."""
        dispatch, context = self.dispatcher.dispatch, self.context
        began = time.process_time()
        for _ in range(REQUESTS):
            answer: Any = dispatch(context, memoryview(bytearray(frame)))  # an append writes into its frame
            if isinstance(answer, list):
                release_slices(answer)
        return (time.process_time() - began) / REQUESTS * 1e6


def frame_of(key: ApiKey, fields: dict[str, Any], request_class: type[Message]) -> bytes:
    """Build one request's frame."""
    version = VERSIONS[key]
    header = encode_request_header(RequestHeader(key, version, 1, "bench"))
    body: bytes = build(request_class, fields, version).encode(version)
    return header + body


def frames() -> dict[str, bytes]:
    """Build the frames, by what they are called in the table."""
    name = TOPIC
    data = [{"index": 0, "records": bytes(batch(b"x" * 100))}]
    produced = {"acks": 1, "timeout_ms": 1000, "topic_data": [{"name": name, "partition_data": data}]}
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}
    fetched = {"max_bytes": 100, "session_epoch": -1, "topics": [{"topic": name, "partitions": [partition]}]}
    return {
        "produce of one record": frame_of(ApiKey.PRODUCE, produced, ProduceRequest),
        "fetch of one batch": frame_of(ApiKey.FETCH, fetched, FetchRequest),
        "metadata of one topic": frame_of(ApiKey.METADATA, {"topics": [{"name": name}]}, MetadataRequest),
    }


def measure_pair(without: Side, having: Side, frame: bytes, number: int) -> tuple[float, float]:
    """Measure both sides; every other time the second begins."""
    if number % 2:
        second = having.microseconds(frame)
        return without.microseconds(frame), second
    return without.microseconds(frame), having.microseconds(frame)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        without = Side(Path(directory) / "without", {})
        having = Side(Path(directory) / "with", {"authorizer.class.name": STANDARD_AUTHORIZER})
        gc.collect()
        gc.freeze()  # as a broker does after its start
        print(f"{'request':24} {'without':>8} {'with':>8}  {'':>6}")
        for name, frame in frames().items():
            pairs = [measure_pair(without, having, frame, number) for number in range(ROUNDS)]
            first, second = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratio = statistics.median(one[1] / one[0] for one in pairs)
            print(f"{name:24} {first:8.2f} {second:8.2f}  {100 * (ratio - 1):+6.1f} %")


if __name__ == "__main__":
    main()
