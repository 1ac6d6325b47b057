from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.errors import StartError
from tidelog.broker.laboratory.control import (
    FIELDS,
    MAX_LINE_BYTES,
    MAX_VALUE,
    Control,
    parse_api,
    parse_error,
    parse_fault,
)
from tidelog.broker.laboratory.faults import Faults
from tidelog.broker.laboratory.server import LaboratoryServer
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError, error_classes


@pytest.fixture
def laboratory(tmp_path: Path) -> Iterator[LaboratoryServer]:
    """A laboratory whose broker was not started."""
    laboratory = LaboratoryServer(BrokerConfig({"log.dirs": str(tmp_path / "data")}))
    yield laboratory
    asyncio.run(laboratory.stop())


def answer(laboratory: LaboratoryServer, **command: Any) -> dict[str, object]:
    return asyncio.run(Control(laboratory).answer(command))


@pytest.mark.parametrize("api", list(ApiKey))
def test_an_api_is_known_by_both_of_its_spellings(api: ApiKey) -> None:
    assert parse_api(api.name) is api
    assert parse_api(api.name.title().replace("_", "")) is api


@pytest.mark.parametrize("error", error_classes())
def test_each_error_is_known_by_its_class_and_by_the_name_in_the_table_of_kafka(error: type[KafkaError]) -> None:
    words = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in error.__name__).strip("_")
    assert parse_error(words) is error
    assert parse_error(words.removesuffix("_ERROR") + "_EXCEPTION") is error


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ({"api": "Produced", "drops": True}, "'Produced' is not an API of Kafka"),
        ({"drops": True}, "'None' is not an API of Kafka"),
        ({"api": "Produce", "error": "BROKEN"}, "'BROKEN' is not an error of Kafka"),
        ({"api": "Produce"}, "a fault needs an error, a delay_ms above 0, or drops: true"),
        ({"api": "Produce", "drops": True, "times": "3"}, "times: expected int, not '3'"),
        (
            {"api": "Produce", "drops": True, "times": 0},
            f"times: expected a number from 1 to {MAX_VALUE}, not 0",
        ),
        (
            {"api": "Produce", "drops": True, "after": -1},
            f"after: expected a number from 0 to {MAX_VALUE}, not -1",
        ),
        (
            {"api": "Produce", "delay_ms": float("inf")},
            f"delay_ms: expected a number from 0 to {MAX_VALUE}, not inf",
        ),
        (
            {"api": "Produce", "delay_ms": 10**400},
            f"delay_ms: expected a number from 0 to {MAX_VALUE}, not 1000",
        ),
        ({"api": "Produce", "drops": True, "times": True}, "times: expected int, not True"),
        ({"api": "Produce", "drops": True, "tmies": 3}, "'tmies' is not a field of a fault"),
    ],
)
def test_a_fault_that_means_nothing_is_refused(command: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_fault(command)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3), st.lists, max_leaves=3
)
WORDS = st.sampled_from(["api", "error", "topic", "times", "after", "delay_ms", "drops", "is_handled", "colour"])


@given(st.dictionaries(WORDS, JSON, max_size=4), st.booleans())
def test_an_accepted_fault_can_be_compared_with_requests(words: dict[str, Any], drops: bool) -> None:
    """Random fields are refused with a reason, or give a fault that can be compared with requests."""
    command = {"command": "fault", "api": "Produce", "drops": drops, **words}
    try:
        fault = parse_fault(command)
    except ValueError:
        return
    faults = Faults()
    faults.add(fault)
    for _ in range(3):
        faults.take(ApiKey.PRODUCE, set)


def test_a_fault_is_parsed_from_the_fields_of_the_command() -> None:
    fault = parse_fault({"api": "Fetch", "error": "LEADER_NOT_AVAILABLE", "times": 2, "after": 3, "topic": "t"})
    assert (fault.api_key, fault.times, fault.after, fault.topic) == (ApiKey.FETCH, 2, 3, "t")
    assert fault.error is not None
    assert fault.error.code == 5


def test_commands_that_mean_nothing_are_answered_with_the_reason(laboratory: LaboratoryServer) -> None:
    assert "the commands are advance, time, fault" in str(answer(laboratory, command="explode")["error"])
    assert "7 is not a command" in str(answer(laboratory, command=7)["error"])
    assert answer(laboratory, command="advance", ms="1") == {
        "error": "advance: expected the fields ms (a whole number)"
    }
    assert answer(laboratory, command="restore", snapshot=3) == {"error": "snapshot 3 is not known"}
    assert answer(laboratory, command="met", fault=3) == {"error": "fault 3 was cleared"}


@pytest.mark.parametrize(
    "command",
    [
        {"command": "advance", "ms": True},
        {"command": "restore", "snapshot": False},
        {"command": "met", "fault": True},
        {"command": "leader", "topic": "t", "partition": False, "is_away": True},
        {"command": "leader", "topic": "t", "partition": 0, "is_away": 1},
        {"command": "disk", "is_full": 1},
    ],
)
def test_true_and_false_are_no_numbers(laboratory: LaboratoryServer, command: dict[str, Any]) -> None:
    expected = f"{command['command']}: expected the fields {FIELDS[command['command']]}"
    assert answer(laboratory, **command) == {"error": expected}


@pytest.mark.parametrize("command", [{"command": "fault"}, {"command": "time"}, {}])
@pytest.mark.parametrize("field", ["api", "command", "colour"])
def test_a_list_or_an_object_is_no_value(laboratory: LaboratoryServer, command: dict[str, Any], field: str) -> None:
    for value in ([1], {"a": 1}):
        expected = f"{field}: expected a text, a number, true, false or null"
        assert answer(laboratory, **{**command, field: value}) == {"error": expected}


@pytest.mark.parametrize(
    "value", ["[" * 60_000, '{"command": ' + "[" * 60_000, '{"a":' * 10_000], ids=["list", "value", "objects"]
)
def test_a_command_that_is_nested_too_deeply_is_answered(laboratory: LaboratoryServer, value: str) -> None:
    """It ended the control of the laboratory without an answer and without a line in the log."""
    ours, theirs = socket.socketpair()

    async def talk() -> list[dict[str, object]]:
        served = asyncio.create_task(Control(laboratory).serve(theirs))
        reader, writer = await asyncio.open_connection(sock=ours)
        answers = []
        for command in (value, '{"command": "time"}'):
            writer.write(command.encode() + b"\n")
            answers.append(json.loads(await asyncio.wait_for(reader.readline(), 10)))
        writer.close()
        await served
        return answers

    refused, time = asyncio.run(talk())
    assert refused == {"error": "the line is not JSON: it is nested too deeply"}
    assert isinstance(time["result"], int)


def test_a_command_of_any_depth_is_answered(laboratory: LaboratoryServer) -> None:
    """The error names no value that the decoder takes, but that is too deep to be written."""
    expected = ("the line is not JSON: it is nested too deeply", "api: expected a text, a number, true, false or null")
    for depth in range(800, 1000):
        line = b'{"command": "fault", "api": ' + b"[" * depth + b"]" * depth + b"}"
        assert asyncio.run(Control(laboratory)._answer_line(line))["error"] in expected


def test_faults_are_set_counted_and_cleared(laboratory: LaboratoryServer) -> None:
    number = answer(laboratory, command="fault", api="Produce", drops=True)["result"]
    assert answer(laboratory, command="met", fault=number) == {"result": 0}
    assert answer(laboratory, command="requests", api="Produce") == {"result": 0}
    assert answer(laboratory, command="clear") == {"result": None}
    assert answer(laboratory, command="met", fault=number) == {"error": f"fault {number} was cleared"}


def test_commands_come_line_by_line_until_the_other_end_closes(laboratory: LaboratoryServer) -> None:
    ours, theirs = socket.socketpair()

    async def talk() -> list[dict[str, object]]:
        served = asyncio.create_task(Control(laboratory).serve(theirs))
        reader, writer = await asyncio.open_connection(sock=ours)
        answers = []
        disk, nested = b'{"command": "disk", "is_full": true}', b"[" * 60_000
        for line in (disk, b"disk full", nested, b"[]", b'{"command": "time"}'):
            writer.write(line + b"\n")
            answers.append(json.loads(await asyncio.wait_for(reader.readline(), 10)))
        writer.close()
        await served
        return answers

    done, refused, nested, no_object, time = asyncio.run(talk())
    assert done == {"result": None}
    assert "not JSON" in str(refused["error"])
    assert "not JSON" in str(nested["error"])
    assert "not a JSON object" in str(no_object["error"])
    assert laboratory.disk.is_full
    assert isinstance(time["result"], int)


def test_a_broker_that_does_not_start_again_is_an_error_of_the_command(
    laboratory: LaboratoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> int:
        raise StartError("the data directory is in use")

    monkeypatch.setattr(laboratory, "snapshot", fail)
    assert answer(laboratory, command="snapshot") == {"error": "the data directory is in use"}


def test_a_command_that_is_too_long_closes_the_socket_and_is_logged(
    laboratory: LaboratoryServer, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = socket.socketpair()

    async def talk() -> bytes:
        served = asyncio.create_task(Control(laboratory).serve(theirs))
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(b"[" + b" " * MAX_LINE_BYTES + b"]\n")
        received = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await served
        return received

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(talk()) == b""
    assert [record.getMessage() for record in caplog.records] == [
        f"a command of the laboratory is longer than {MAX_LINE_BYTES} bytes: its socket is closed"
    ]
