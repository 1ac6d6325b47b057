"""The longest requests of one client delay no other client: measured by the broker's own turn clock, beside a client
that produces.

The bystander produces a record every 10 ms; its records must all be there. A turn's CPU time does not depend on what
else the machine does, but for its caches: a request whose turn exceeds TURN_LIMIT_S is sent once more, and must keep it
then. ``TIDELOG_ALL_LONG_REQUESTS=1`` also sends the largest legal request of every array of every API; ``2/4`` those of
the second of four parts of the APIs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from benchmarks.bystander import CONTINUES, Bystander, answer_to, ask, check_records, prepare, resident_bytes
from benchmarks.hostile_requests import WIDE_PARTITIONS, WIDE_TOPIC, Hostile, hostile_requests
from tests.support.broker import TidelogProcess
from tests.support.long_requests import all_cases, build, most_in_one_turn, most_legal
from tests.support.turns import longest_turn_cpu_s
from tidelog.broker.requests.registry import REGISTRY
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.messages.describe_groups import DescribeGroupsRequest
from tidelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

TURN_LIMIT_S = 0.02
TRIES = 2
OPENED_AT_ONCE = 1_000
ANSWER_S = 600.0
"""Ends a test that would hang. The longest request needs 8 s of CPU, more than a minute beside many other programs."""
STOP_S = 300.0
"""The wide topic's 10,000 logs are synced one by one."""
GROWTH_LIMIT_BYTES = 256 * 1024 * 1024
ALL = os.environ.get("TIDELOG_ALL_LONG_REQUESTS", "")
ROWS = list(hostile_requests(node_id=1))
SLOW = ("ListOffsets, 49", "Fetch, 19", "CreateTopics", "DeleteTopics, 300")
"""They make or open files by the thousand."""


def part_of_apis(wanted: str) -> list[int]:
    """Return the APIs with arrays: for ``"2/4"`` the second, the sixth and so on, for any other text all."""
    found = [key for key in REGISTRY if any(all_cases(key))]
    first, _, step = wanted.partition("/")
    return found[int(first) - 1 :: int(step)] if step else found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogProcess]:
    directory: Path = tmp_path_factory.mktemp("long-requests")
    with TidelogProcess(directory, {"auto.create.topics.enable": "false"}) as broker:
        broker.stop_timeout_s = STOP_S
        prepare(broker.port)
        warm_up = DescribeGroupsRequest(groups=["none"])  # what is made and imported with the first group
        ask(broker.port, Hostile("warm up", 5, lambda: warm_up))
        if ALL:
            open_logs(broker)
        longest_turn_cpu_s(broker)  # each reading begins a new measurement
        yield broker


def open_logs(broker: TidelogProcess) -> None:
    """Open the logs of the wide topic: on a busy machine it takes longer than one answer may."""
    for first in range(0, WIDE_PARTITIONS, OPENED_AT_ONCE):
        partitions = [
            ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(first, first + OPENED_AT_ONCE)
        ]
        topics = [ListOffsetsTopic(name=WIDE_TOPIC, partitions=partitions)]
        ask(broker.port, Hostile("open", 7, partial(ListOffsetsRequest, topics=topics)))


@pytest.fixture(scope="module")
def bystander(broker: TidelogProcess) -> Iterator[Bystander]:
    with Bystander(broker.port) as bystander:
        yield bystander
    check_records(broker.port, bystander.acknowledged)


def check(broker: TidelogProcess, bystander: Bystander, frame: bytes) -> str:
    """Send a request beside the bystander, and say what became of it."""
    before, acknowledged = resident_bytes(broker.pid), bystander.acknowledged
    turns: list[float] = []
    while len(turns) < TRIES and (not turns or turns[-1] > TURN_LIMIT_S):
        answer = answer_to(broker.port, frame, ANSWER_S)
        turns.append(longest_turn_cpu_s(broker))
    assert min(turns) <= TURN_LIMIT_S, turns
    assert resident_bytes(broker.pid) - before <= GROWTH_LIMIT_BYTES
    while bystander.acknowledged == acknowledged:
        assert bystander.failure is None
    return answer


@pytest.mark.parametrize("name", [row.name for row in ROWS if ALL or not row.name.startswith(SLOW)])
def test_a_request_that_once_blocked_the_event_loop_does_no_more(
    broker: TidelogProcess, bystander: Bystander, name: str
) -> None:
    assert check(broker, bystander, next(row for row in ROWS if row.name == name).frame()) in CONTINUES


@pytest.mark.timeout(1_800)  # up to 126 requests
@pytest.mark.skipif(not ALL, reason="TIDELOG_ALL_LONG_REQUESTS is not set; the unit test counts each API's work")
@pytest.mark.parametrize("api_key", part_of_apis(ALL), ids=lambda key: ApiKey(key).name)
def test_the_largest_legal_request_of_every_api_is_answered(
    broker: TidelogProcess, bystander: Bystander, api_key: int
) -> None:
    """Beside it the longest one that is decoded within one turn."""
    for case in all_cases(api_key):
        for count in (most_legal(case), most_in_one_turn(case)):
            request = Hostile(str(case), case.version, partial(build, case, count))
            assert check(broker, bystander, request.frame()) == "answered", (case, count)
