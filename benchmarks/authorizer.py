"""CPU of one request with and without an authorizer: ``python -m benchmarks.authorizer``.

One connection's single-record produce, fetch of one batch, and Metadata, dispatched in process: without an authorizer,
and with 10,000 ACLs, one of which, a prefixed one, allows the request. Both sides share one broker and one log, because
two brokers differ by several percent by chance. In each of many short turns all sides are measured right after each
other. The table has the medians in microseconds of process time, and the median of the turns' ratios. The column *same*
compares a second side without an authorizer: its difference from zero is chance.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.machine import require_compiled
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
    """A dispatcher of the broker's parts, with or without its authorizer, and a connection to it."""

    def __init__(self, data: DataBroker, *, has_authorizer: bool) -> None:
        self._dispatcher = Dispatcher(data.broker if has_authorizer else replace(data.broker, authorizer=None))
        self._context = RequestContext()
        self._context.principal = Principal("User", "ann")

    def microseconds(self, frame: bytes) -> float:
        """Return the CPU microseconds of one request: REQUESTS of them are measured."""
        dispatch, context = self._dispatcher.dispatch, self._context
        began = time.process_time()
        for _ in range(REQUESTS):
            answer: Any = dispatch(context, memoryview(bytearray(frame)))  # an append writes into its frame
            if isinstance(answer, list):
                release_slices(answer)
        return (time.process_time() - began) / REQUESTS * 1e6


def build_broker(directory: Path) -> DataBroker:
    """Build a broker with a topic and ACLs. Raises RuntimeError if the topic was not created."""
    data = DataBroker(directory, {"authorizer.class.name": STANDARD_AUTHORIZER})
    with opening_expected():
        create_topic(data, TOPIC, 1)
    if data.broker.metadata.find(TOPIC) is None:
        raise RuntimeError("the topic is not there: refusals would be measured")
    for number in range(ACLS):
        allow(data, number)
    return data


def allow(data: DataBroker, number: int) -> None:
    """Commit rule ``number``: number 7 allows the request, and every tenth has a prefixed name."""
    name, pattern = (
        (f"team-{number}.", PatternType.PREFIXED) if number % 10 == 7 else (f"t{number}", PatternType.LITERAL)
    )
    user = "User:ann" if number == 7 else f"User:u{number % 100}"
    rule = AccessRule(ResourceType.TOPIC, name, pattern, user, "*", AclOperation.ALL, AclPermissionType.ALLOW)
    data.broker.controller.commit([VersionedRecord(acl_record(number.to_bytes(16, "big"), rule))])


def frame_of(key: ApiKey, fields: dict[str, Any], request_class: type[Message]) -> bytes:
    """Build one request's frame."""
    version = VERSIONS[key]
    header = encode_request_header(RequestHeader(key, version, 1, "bench"))
    body: bytes = build(request_class, fields, version).encode(version)
    return header + body


def frames() -> dict[str, bytes]:
    """Build the request frames by their names in the table."""
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


def measure_turn(sides: list[Side], frame: bytes, number: int) -> list[float]:
    """Measure each side once; the turn's number decides which side begins."""
    found = [0.0] * len(sides)
    for step in range(len(sides)):
        side = (number + step) % len(sides)
        found[side] = sides[side].microseconds(frame)
    return found


def main() -> None:
    """Measure and print."""
    require_compiled()
    with tempfile.TemporaryDirectory() as directory:
        data = build_broker(Path(directory))
        sides = [Side(data, has_authorizer=has_authorizer) for has_authorizer in (False, False, True)]
        gc.collect()
        gc.freeze()  # as a broker does after its start
        print(f"{'request':24} {'without':>8} {'with':>8}  {'':>8}  {'same':>8}")
        for name, frame in frames().items():
            turns = [measure_turn(sides, frame, number) for number in range(ROUNDS)]
            without, _, having = (statistics.median(column) for column in zip(*turns, strict=True))
            ratio, same = (statistics.median(turn[side] / turn[0] for turn in turns) for side in (2, 1))
            print(f"{name:24} {without:8.2f} {having:8.2f}  {100 * (ratio - 1):+6.1f} %  {100 * (same - 1):+6.1f} %")


if __name__ == "__main__":
    main()
