"""Lines that ``tidelog produce`` reads from files and pipes."""

from __future__ import annotations

import fcntl
import os
import resource
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from tidelog.client import ClientError
from tidelog.client.records.producer import OutgoingRecord, Producer
from tidelog.commands.frame.records import RecordFormatError
from tidelog.commands.records.produce import Fields, lines_of, plain_record_of, send_all

HIGH_DESCRIPTOR = 1_100
"""Beyond the 1,023 that a select can hold."""


class PendingProducer:
    """A producer that has records to send until it is flushed; each flush writes the given bytes to a descriptor."""

    def __init__(self, descriptor: int = -1, late: bytes = b"") -> None:
        self.is_empty = False
        self.flushes = 0
        self._descriptor = descriptor
        self._late = late

    def flush(self) -> None:
        self.flushes += 1
        self.is_empty = True
        os.write(self._descriptor, self._late)


def read(file: BinaryIO) -> tuple[list[bytes], int]:
    """Return the lines of a file, and how often reading them made the producer flush."""
    producer = PendingProducer()
    lines = list(lines_of(file, cast(Producer, producer), None))
    return lines, producer.flushes


def test_a_pipe_with_lines_is_read_before_the_producer_sends() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"one\r\ntwo\nthree")
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        assert read(file) == ([b"one", b"two", b"three"], 0)


def test_an_empty_pipe_makes_the_producer_send_first() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as file:
        producer = PendingProducer(writing, b"late\n")
        lines = lines_of(file, cast(Producer, producer), None)
        assert (next(lines), producer.flushes) == (b"late", 1)
        os.close(writing)
        assert list(lines) == []


def test_a_file_may_have_any_descriptor() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= HIGH_DESCRIPTOR:
        pytest.skip("needs a higher limit of open files: ulimit -n 4096")
    reading, writing = os.pipe()
    os.write(writing, b"one\n")
    os.close(writing)
    high = fcntl.fcntl(reading, fcntl.F_DUPFD, HIGH_DESCRIPTOR)
    os.close(reading)
    with os.fdopen(high, "rb") as file:
        assert read(file) == ([b"one"], 0)


def test_a_delimiter_that_is_not_utf8_is_named() -> None:
    fields = Fields("lines", None, b"\xff", (), None, False)
    with pytest.raises(RecordFormatError, match="expected KEY\ufffdVALUE, found 'a'"):
        plain_record_of(b"a", fields)


class CountingProducer(PendingProducer):
    """A producer that keeps the values it was given, and counts those that it has sent."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[bytes | None] = []
        self.sent = 0

    def send(self, record: OutgoingRecord) -> None:
        self.given.append(record.value)

    def flush(self) -> None:
        self.sent = len(self.given)


@pytest.mark.parametrize("bad", [0, 3, 9])
@pytest.mark.parametrize("form", ["json", "lines"])
def test_lines_before_a_bad_line_are_sent(tmp_path: Path, bad: int, form: str) -> None:
    lines = [b'{"value": "%d"}' % number if form == "json" else b"%d:a" % number for number in range(10)]
    lines[bad] = b"no"
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    producer = CountingProducer()
    fields = Fields(form, None, b":" if form == "lines" else None, (), None, False)
    with (tmp_path / "lines").open("rb", 0) as file, pytest.raises(ClientError, match=f"^input line {bad + 1}: "):
        send_all(cast(BinaryIO, file), "input", fields, cast(Producer, producer))
    assert len(producer.given) == producer.sent == bad


@pytest.mark.parametrize(
    ("form", "line"), [("lines", b""), ("file", b""), ("json", b'{"value":""}'), ("json", b'{"value_base64":""}')]
)
def test_an_empty_value_is_null_as_a_tombstone_alone(form: str, line: bytes) -> None:
    fields = Fields(form, b"k", None, (), None, True)
    assert plain_record_of(line, fields).value is None
    assert plain_record_of(line, fields._replace(tombstone=False)).value == b""
