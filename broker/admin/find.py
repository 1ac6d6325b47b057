"""``GET /topics/{topic}/records``: search for records over HTTP, with a streamed answer.

key= key64=       the key, as text or base64          tag= tag64=     the tag, likewise
from= to=         times, both ends included: ms, ISO 8601, 09:00 of today, 15m ago
max=              largest number of records of the answer (default 100), newest first
next=             go on where an earlier answer stopped, by the text in its field "next"
format=           text (default; bytes that are not UTF-8 become {"base64": ...}) or base64
isolation=        read_uncommitted (default) or read_committed: no records of open or aborted transactions
wait=true         answer once all records below this broker's high watermarks are in the index

200  {"records": [{"partition", "offset", "timestamp", "key", "value", "headers": [[name, value], ...]}, ...],
      "next": "0:4711" or null, "lag": records not indexed yet}
400 malformed request   403 READ was revoked meanwhile   404 no such topic   409 no such index
503 the index is behind (wait=true), a log cannot be read, or this broker has no replica of a partition
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tidelog.broker.admin.guard import refusal
from tidelog.broker.admin.parameters import parse_switch, read_parameters
from tidelog.broker.admin.permissions import may_read
from tidelog.broker.find.finding import FindRequest, FoundRecord, IndexBehindError, parse_next, plan
from tidelog.broker.replica.opening import opening_of
from tidelog.log.find.lookup import MAX_TIME, MIN_TIME, NotIndexedError, Query
from tidelog.log.find.times import parse_time
from tidelog.protocol.errors import InvalidRequestError, KafkaError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

DEFAULT_MAX = 100
_PART_RECORDS = 256
_PART_BYTES = 1024 * 1024
"""Bounds of one part of an answer, which is built in a worker and held in memory. The record that reaches a bound is
the last of its part."""
_MAX_DIGITS = 9
_PARAMETERS = frozenset({"key", "key64", "tag", "tag64", "from", "to", "max", "next", "format", "isolation", "wait"})
_ISOLATIONS = ("read_uncommitted", "read_committed")


async def answer_find(broker: Broker, request: web.Request, threads: Executor) -> web.StreamResponse:
    """Answer one search, whose work is done in ``threads``."""
    try:
        parameters = read_parameters(request.query.items(), _PARAMETERS)
        asked = parse_request(request.match_info["topic"], parameters, broker.time.milliseconds())
        await open_logs(broker, asked.topic)
        answer = plan(broker, asked)
        as_base64 = parameters.get("format") == "base64"
        in_worker = partial(broker.loop.run_in_executor, threads, take, iter(answer), as_base64)
        part = await in_worker()
        if not may_read(broker, request, asked.topic):
            return refusal(403, "not allowed")  # the permission was revoked while the search waited
    except (ValueError, InvalidRequestError) as error:
        return web.json_response({"error": str(error)}, status=400)
    except UnknownTopicOrPartitionError as error:
        return web.json_response({"error": str(error)}, status=404)
    except NotIndexedError as error:
        return web.json_response({"error": str(error)}, status=409)
    except (IndexBehindError, KafkaError) as error:
        return web.json_response({"error": str(error)}, status=503)
    response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
    await response.prepare(request)
    await response.write(b'{"records": [')
    while part:
        await response.write(part)
        part = await in_worker()
        if request.transport is not None and not may_read(broker, request, asked.topic):
            request.transport.abort()  # the permission was revoked meanwhile
            return response
        await response.write(b",\n" if part else b"")
    await response.write(f'],\n"next": {json.dumps(answer.next)}, "lag": {answer.index_lag}}}\n'.encode())
    await response.write_eof()
    return response


async def open_logs(broker: Broker, topic: str) -> None:
    """Open a topic's logs in threads, one after the other."""
    image = broker.metadata.topics.get(topic)
    for index in range(0 if image is None else image.partition_count):
        opening = opening_of(broker, topic, index)
        if opening is not None:
            opened = asyncio.Event()
            opening.on_done(lambda _, opened=opened: opened.set())  # type: ignore[misc]
            await opened.wait()


def take(records: Iterator[FoundRecord], as_base64: bool) -> bytes:
    """Return the next part of an answer, a line of JSON for each record; empty at the end. In a worker."""
    lines: list[bytes] = []
    size = 0
    for found in islice(records, _PART_RECORDS):
        lines.append(json.dumps(format_record(found, as_base64=as_base64)).encode())
        size += len(lines[-1])
        if size >= _PART_BYTES:
            break
    return b",\n".join(lines)


def parse_request(topic: str, parameters: Mapping[str, str], now_ms: int) -> FindRequest:
    """Parse the parameters of a URL. Raises ValueError."""
    if parameters.get("format", "text") not in ("text", "base64"):
        raise ValueError(f"format is {parameters['format']!r}: expected text or base64")
    isolation = parameters.get("isolation", _ISOLATIONS[0])
    if isolation not in _ISOLATIONS:
        raise ValueError(f"isolation is {isolation!r}: expected {' or '.join(_ISOLATIONS)}")
    query = Query(
        key=parse_bytes(parameters, "key"),
        tag=parse_bytes(parameters, "tag"),
        begin=parse_bound(parameters, "from", now_ms, MIN_TIME),
        end=parse_bound(parameters, "to", now_ms, MAX_TIME),
    )
    return FindRequest(
        topic=topic,
        query=query,
        max_records=parse_max(parameters.get("max", str(DEFAULT_MAX))),
        wait=parse_switch(parameters, "wait"),
        committed=isolation == "read_committed",
        below=parse_position(parameters.get("next", "")),
    )


def parse_max(text: str) -> int:
    """Parse a number of records. Raises ValueError."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and int(text)):
        raise ValueError(f"max is {text[:20]!r}: expected a number from 1 to {10**_MAX_DIGITS - 1}")
    return int(text)


def parse_bound(parameters: Mapping[str, str], name: str, now_ms: int, default: int) -> int:
    """Parse a bound of the time range, to milliseconds since 1970. Raises ValueError."""
    text = parameters.get(name)
    if text is None:
        return default
    try:
        time_ms = parse_time(text, now_ms)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not MIN_TIME <= time_ms <= MAX_TIME:
        raise ValueError(f"{name} is {text!r}: no record has such a time")
    return time_ms


def parse_position(text: str) -> dict[int, int]:
    """Parse the position at which the previous page stopped. Raises ValueError."""
    try:
        position = parse_next(text)
    except InvalidRequestError as error:
        raise ValueError(str(error)) from None
    if text and len(position) != text.count(",") + 1:
        raise ValueError(f"next={text!r}: each pair must name a partition, and each partition only once")
    return position


def parse_bytes(parameters: Mapping[str, str], name: str) -> bytes | None:
    """Read a parameter as text or, under its other name, as base64. Raises ValueError."""
    encoded = parameters.get(f"{name}64")
    if encoded is not None and name in parameters:
        raise ValueError(f"{name} and {name}64 are both given")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error as error:
            raise ValueError(f"{name}64 is not base64: {error}") from error
    text = parameters.get(name)
    return None if text is None else text.encode()


def format_record(found: FoundRecord, *, as_base64: bool) -> dict[str, Any]:
    """Convert one record to types that JSON has."""
    partition, record = found
    return {
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": encode_value(record.key, as_base64=as_base64),
        "value": encode_value(record.value, as_base64=as_base64),
        "headers": [[name, encode_value(value, as_base64=as_base64)] for name, value in record.headers],
    }


def encode_value(value: bytes | None, *, as_base64: bool) -> Any:
    """Encode bytes as base64, or as text if ``as_base64`` is False and they are UTF-8."""
    if value is None:
        return None
    if as_base64:
        return base64.b64encode(value).decode()
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
