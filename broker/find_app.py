"""``GET /topics/{topic}/records``: look-ups over HTTP, streamed.

key= key64=       the key, as text or base64          tag= tag64=     likewise
from= to=         times, both ends included: ms, ISO 8601, 09:00 of today, 15m ago
max=              at most so many records (default 100), newest first; next= goes on where an answer stopped
format=           text (default; what is not UTF-8 comes as {"base64": ...}) or base64
isolation=        read_uncommitted (default) or read_committed: nothing of open or aborted transactions
wait=true         not before everything acknowledged so far is in the index

200  {"records": [{"partition", "offset", "timestamp", "key", "value", "headers": [[name, value], ...]}, ...],
      "next": "0:4711" or null, "lag": records not indexed yet}
400 malformed question   404 no such topic   409 no such index   503 the index is behind (wait=true)
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from aiohttp import web

from broker.finding import FindRequest, FoundRecord, IndexBehindError, parse_next, plan
from log.find.lookup import MAX_TIME, MIN_TIME, NotIndexedError, Query
from log.find.times import parse_time
from protocol.errors import InvalidRequestError, KafkaError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from broker.broker import Broker

DEFAULT_MAX = 100
_PART_RECORDS = 256
_PARAMETERS = frozenset({"key", "key64", "tag", "tag64", "from", "to", "max", "next", "format", "isolation", "wait"})
_ISOLATIONS = ("read_uncommitted", "read_committed")


async def answer_find(broker: Broker, request: web.Request) -> web.StreamResponse:
    """Answer one look-up."""
    try:
        asked = parse_request(request.match_info["topic"], request.query, broker.time.milliseconds())
        answer = plan(broker, asked)
        records = iter(answer)
        part = await broker.loop.run_in_executor(None, take, records)
    except (ValueError, InvalidRequestError) as error:
        return web.json_response({"error": str(error)}, status=400)
    except UnknownTopicOrPartitionError as error:
        return web.json_response({"error": str(error)}, status=404)
    except NotIndexedError as error:
        return web.json_response({"error": str(error)}, status=409)
    except (IndexBehindError, KafkaError) as error:
        return web.json_response({"error": str(error)}, status=503)
    as_base64 = request.query.get("format") == "base64"
    response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
    await response.prepare(request)
    separator = '{"records": ['
    while part:
        lines = [json.dumps(as_json(found, as_base64=as_base64)) for found in part]
        await response.write((separator + ",\n".join(lines)).encode())
        separator = ",\n"
        part = await broker.loop.run_in_executor(None, take, records)
    if separator != ",\n":
        await response.write(separator.encode())
    await response.write(f'],\n"next": {json.dumps(answer.next)}, "lag": {answer.lag}}}\n'.encode())
    await response.write_eof()
    return response


def take(records: Iterator[FoundRecord]) -> list[FoundRecord]:
    """The next part of an answer. In a worker."""
    return list(islice(records, _PART_RECORDS))


def parse_request(topic: str, parameters: Mapping[str, str], now_ms: int) -> FindRequest:
    """The question a URL asks. Raises ValueError, InvalidRequestError."""
    unknown = sorted(set(parameters) - _PARAMETERS)
    if unknown:
        raise ValueError(f"unknown parameter {unknown[0]!r}; there are {', '.join(sorted(_PARAMETERS))}")
    if parameters.get("format", "text") not in ("text", "base64"):
        raise ValueError(f"format is {parameters['format']!r}: expected text or base64")
    isolation = parameters.get("isolation", _ISOLATIONS[0])
    if isolation not in _ISOLATIONS:
        raise ValueError(f"isolation is {isolation!r}: expected {' or '.join(_ISOLATIONS)}")
    begin, end = parameters.get("from"), parameters.get("to")
    query = Query(
        key=parse_bytes(parameters, "key"),
        tag=parse_bytes(parameters, "tag"),
        begin=MIN_TIME if begin is None else parse_time(begin, now_ms),
        end=MAX_TIME if end is None else parse_time(end, now_ms),
    )
    return FindRequest(
        topic=topic,
        query=query,
        max_records=parse_max(parameters.get("max", str(DEFAULT_MAX))),
        wait=parse_switch(parameters, "wait"),
        committed=isolation == "read_committed",
        below=parse_next(parameters.get("next", "")),
    )


def parse_max(text: str) -> int:
    """A number of records. Raises ValueError."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError(f"max is {text!r}: expected a number from 1 on")
    return int(text)


def parse_switch(parameters: Mapping[str, str], name: str) -> bool:
    """A parameter that is true or false, false unless given. Raises ValueError."""
    text = parameters.get(name, "false")
    if text not in ("1", "true", "0", "false"):
        raise ValueError(f"{name} is {text!r}: expected true or false")
    return text in ("1", "true")


def parse_bytes(parameters: Mapping[str, str], name: str) -> bytes | None:
    """A parameter as text or, under its other name, as base64. Raises ValueError."""
    encoded = parameters.get(f"{name}64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error as error:
            raise ValueError(f"{name}64 is no base64: {error}") from error
    text = parameters.get(name)
    return None if text is None else text.encode()


def as_json(found: FoundRecord, *, as_base64: bool) -> dict[str, Any]:
    """One record as JSON has it."""
    partition, record = found
    return {
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": encoded(record.key, as_base64=as_base64),
        "value": encoded(record.value, as_base64=as_base64),
        "headers": [[name, encoded(value, as_base64=as_base64)] for name, value in record.headers],
    }


def encoded(value: bytes | None, *, as_base64: bool) -> Any:
    """Bytes as asked: base64, or text where they are text."""
    if value is None:
        return None
    if as_base64:
        return base64.b64encode(value).decode()
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
