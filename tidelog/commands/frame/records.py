"""Records as text: the JSON form that ``produce``, ``consume`` and ``find`` share, and lines for people.

In JSON, ``key`` and ``value`` have UTF-8 as text; other bytes are in base64 under ``key_base64`` and ``value_base64``.
A header is an object with ``name`` and likewise ``value`` or ``value_base64``. ``produce --format json`` reads the
lines that the other commands print.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.protocol.foreign_text import decode_json

if TYPE_CHECKING:
    from tidelog.find import FoundRecord


class RecordFormatError(ValueError):
    """A text is not a record; the message has the expected form."""


class ParsedRecord(NamedTuple):
    """A record that was parsed from a JSON object; None for fields that are null or missing."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None
    timestamp: int | None


FIELDS = {"topic", "partition", "offset", "timestamp", "key", "key_base64", "value", "value_base64", "headers"}
"""Keys of a record in JSON; ``topic`` and ``offset`` are printed, and ignored when parsing."""
MAX_PARTITION, MAX_TIMESTAMP = 2**31 - 1, 2**63 - 1
NO_TIMESTAMP = -1
"""Timestamp of a record of magic 0, which has none."""


def json_line(record: FoundRecord) -> str:
    """Format one record as a JSON object in one line."""
    return json.dumps(json_fields(record), ensure_ascii=False)


def json_line_of(record: FoundRecord, value: Any) -> str:
    """Format one record as a JSON object in one line, with ``value`` as JSON instead of the value's bytes."""
    return json.dumps({**json_fields(record._replace(value=None)), "value": value}, ensure_ascii=False)


def json_fields(record: FoundRecord) -> dict[str, Any]:
    """Build the fields of a record's JSON object."""
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    fields |= content_field("key", record.key)
    fields |= content_field("value", record.value)
    fields["headers"] = [{"name": name, **content_field("value", content)} for name, content in record.headers]
    return fields


def text_line(record: FoundRecord) -> str:
    """Format one record as text: topic-partition and offset, time, key and value, tab-separated."""
    return "\t".join([_position_text(record), _text(record.key), _text(record.value)])


def hex_line(record: FoundRecord) -> str:
    """Format one record as text, with key and value in hexadecimal."""
    return "\t".join(
        [_position_text(record), *("-" if one is None else one.hex() for one in (record.key, record.value))]
    )


def parse_json_record(line: str, *, has_json_value: bool = False) -> ParsedRecord:
    """Parse one line of JSON. With ``has_json_value`` the record's value is the JSON text of ``value``.

    Raises RecordFormatError.
    """
    try:
        fields = decode_json(line)
    except ValueError as error:
        raise RecordFormatError(f"no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise RecordFormatError('expected an object such as {"key": "a", "value": "b"}')
    unknown = sorted(set(fields) - FIELDS)
    if unknown:
        raise RecordFormatError(f"unknown key {unknown[0]!r}; expected {', '.join(sorted(FIELDS))}")
    headers = fields.get("headers") or []
    if not isinstance(headers, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in headers
    ):
        raise RecordFormatError('headers: expected a list such as [{"name": "a", "value": "b"}]')
    return ParsedRecord(
        _bytes(fields, "key"),
        _json_value(fields) if has_json_value else _bytes(fields, "value"),
        tuple((_utf8("headers", one["name"]).decode(), _bytes(one, "value")) for one in headers),
        _number(fields, "partition", MAX_PARTITION),
        None if fields.get("timestamp") == NO_TIMESTAMP else _number(fields, "timestamp", MAX_TIMESTAMP),
    )


def content_field(name: str, content: bytes | None) -> dict[str, str | None]:
    """Build the JSON field of some bytes: text under ``name``, or base64 under ``<name>_base64``."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}


def _bytes(fields: Mapping[str, Any], name: str) -> bytes | None:
    encoded, text = fields.get(f"{name}_base64"), fields.get(name)
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise RecordFormatError(f"{name}_base64: {encoded!r} is not base64") from None
    if text is None:
        return None
    return _utf8(name, text if isinstance(text, str) else json.dumps(text, ensure_ascii=False))


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise RecordFormatError(f"{name}: {half} is half of a character, which UTF-8 cannot encode") from None


def _json_value(fields: Mapping[str, Any]) -> bytes | None:
    if fields.get("value_base64") is not None:
        raise RecordFormatError("value_base64: expected the value in JSON, under value")
    value = fields.get("value")
    return None if value is None else json.dumps(value).encode()


def _number(fields: Mapping[str, Any], name: str, largest: int) -> int | None:
    number = fields.get(name)
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= largest):
        raise RecordFormatError(f"{name}: {number!r} is not a number from 0 to {largest}")
    return number


def _position_text(record: FoundRecord) -> str:
    moment = "-" if record.timestamp < 0 else _moment_text(record.timestamp)
    return f"{record.topic}-{record.partition}@{record.offset}\t{moment}"


def _moment_text(timestamp: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).astimezone().isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):  # after the year 9999
        return f"{timestamp} ms"


def _text(content: bytes | None) -> str:
    return "-" if content is None else content.decode("utf-8", "replace")
