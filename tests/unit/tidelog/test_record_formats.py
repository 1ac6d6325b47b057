"""Records as JSON and as text, and the ranges that a group's leader assigns."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import DEPTH
from tidelog.client.records.member import assign_ranges
from tidelog.commands.frame.records import RecordFormatError, hex_line, json_line, parse_json_record, text_line
from tidelog.find import FoundRecord

CONTENT = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace"))
HEADERS = st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), CONTENT), max_size=3).map(tuple)


@settings(max_examples=40 * DEPTH)
@given(CONTENT, CONTENT, HEADERS, st.integers(0, 2**40))
def test_lines_of_json_line_are_parsed_to_the_same_record(
    key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...], timestamp: int
) -> None:
    line = json_line(FoundRecord("t", 3, 7, timestamp, key, value, headers))
    assert "\n" not in line
    assert parse_json_record(line) == (key, value, headers, 3, timestamp)


def test_a_record_without_a_timestamp_is_parsed_again() -> None:
    assert parse_json_record(json_line(FoundRecord("t", 0, 0, -1, None, b"v", ()))).timestamp is None


@pytest.mark.parametrize("timestamp", [1_760_000_000_000_000, 2**63 - 1])  # microseconds, and the largest
@pytest.mark.parametrize("format_line", [text_line, hex_line])
def test_a_time_after_the_year_9999_is_shown_in_ms(format_line: Callable[[FoundRecord], str], timestamp: int) -> None:
    assert format_line(FoundRecord("t", 0, 5, timestamp, None, None, ())) == f"t-0@5\t{timestamp} ms\t-\t-"


def test_bytes_that_are_no_text_stand_in_base64() -> None:
    fields = json.loads(json_line(FoundRecord("t", 0, 0, 0, b"\xff", "ä".encode(), ())))
    assert fields["key_base64"] == "/w=="
    assert "key" not in fields
    assert fields["value"] == "ä"


def test_bytes_that_are_no_text_are_shown_to_people() -> None:
    record = FoundRecord("t", 0, 5, -1, None, b"\xff", ())
    assert text_line(record) == "t-0@5\t-\t-\t\N{REPLACEMENT CHARACTER}"
    assert hex_line(record) == "t-0@5\t-\t-\tff"


@pytest.mark.parametrize("line", ["", "1", '{"key": "a", "keys": 1}', '{"timestamp": true}', '{"headers": [{}]}'])
def test_a_line_that_is_no_record_is_refused(line: str) -> None:
    with pytest.raises(RecordFormatError):
        parse_json_record(line)


@given(
    st.dictionaries(st.text(min_size=1, max_size=3), st.sets(st.sampled_from("abc")), min_size=1, max_size=6),
    st.fixed_dictionaries({topic: st.integers(1, 9) for topic in "abc"}),
)
def test_every_partition_has_one_member_and_shares_differ_by_one(
    topics_of: dict[str, set[str]], counts: dict[str, int]
) -> None:
    wanted = {topic: count for topic, count in counts.items() if any(topic in mine for mine in topics_of.values())}
    assigned = assign_ranges(topics_of, wanted)
    assert set(assigned) == set(topics_of)
    for topic, count in wanted.items():
        shares = [mine.get(topic, []) for member, mine in assigned.items() if topic in topics_of[member]]
        assert sorted(number for share in shares for number in share) == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert all(set(mine) <= topics_of[member] for member, mine in assigned.items())
