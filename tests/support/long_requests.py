"""Requests with one long array each, for every array of every API, as a hostile or a very large client may send them.

All arrays of a request have one element, except one (:class:`Case`), which has many. These are equal, or name different
things that do not exist, or different partitions of one topic (:class:`Naming`), because handlers treat these
differently.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from tidelog.broker.requests.bounds import max_elements
from tidelog.broker.requests.registry import REGISTRY
from tidelog.broker.requests.route import ONE_TURN_BYTES
from tidelog.protocol.api_keys import ApiKey, request_header_version
from tidelog.protocol.schema.fields import Field, Message, Struct

WIDE_TOPIC = "wide"
TOPIC_ID = b"\x07" * 16
VALUES: dict[str, Any] = {
    # Values that get a request past its first checks.
    "group_id": "g",
    "member_id": "m",
    "transactional_id": "tx",
    "v3_and_below_transactional_id": "tx",
    "resource_type": 2,
    "entity_type": "client-id",
    "replication_factor": -1,
    "num_partitions": -1,
    "timestamp": -1,
    "max_num_offsets": 1,
    "mechanism": 1,
    "iterations": 8192,
    "response_partition_limit": 2000,
    "max_wait_ms": 0,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 10,
    "replica_id": -1,
    "timeout_ms": 1000,
    "generation_id_or_member_epoch": -1,
    "session_epoch": -1,
    "acks": -1,
    "max_num_streams": 1,
}


class Naming(Enum):
    """The names in the elements of the long array."""

    SAME = "the same"
    UNKNOWN = "unknown"
    PARTITIONS = "partitions"
    """Different partitions of one wide topic, under its name."""


class Case(NamedTuple):
    """One array of one API in one version: the names of the fields that lead to it, and the names in its elements."""

    api_key: int
    version: int
    path: tuple[str, ...]
    naming: Naming

    def __str__(self) -> str:
        name = ApiKey(self.api_key).name
        return f"{name}-v{self.version}-{'.'.join(self.path)}-{self.naming.value}"


def request_class(api_key: int) -> type[Message]:
    """Return the class of an API's request."""
    found: type[Message] = importlib.import_module(REGISTRY[api_key].module).Request
    return found


def all_cases(api_key: int) -> Iterator[Case]:
    """Yield a case for every array of the API's newest and oldest version, with each naming."""
    entry = REGISTRY[api_key]
    for version in dict.fromkeys((entry.max_version, entry.min_version)):
        for path in array_paths(request_class(api_key), version):
            for naming in Naming:
                yield Case(api_key, version, path, naming)


def array_paths(cls: type[Struct], version: int) -> Iterator[tuple[str, ...]]:
    """Yield, for each array of ``cls`` at ``version``, the names of the fields that lead to it."""
    for field in cls.FIELDS:
        if not field.versions.has(version):
            continue
        if field.kind == "array":
            yield (field.name,)
        if isinstance(field.item, type):
            yield from ((field.name, *rest) for rest in array_paths(field.item, version))


def build(case: Case, count: int) -> Message:
    """Build the request with ``count`` elements in the case's array, and one element in each other array."""
    return _struct(request_class(case.api_key), case, case.path, count, 0)  # type: ignore[return-value]


def most_legal(case: Case) -> int:
    """Return the largest number of elements of the case's array whose request is not refused for its length."""
    one, two = (elements_in(build(case, count)) for count in (1, 2))
    each = two - one
    return (max_elements(case.api_key) - (one - each)) // each


def most_in_one_turn(case: Case) -> int:
    """Return the largest number of elements of the case's array whose request is decoded in one step."""
    one, many = (len(frame_of(case, count)) for count in (1, 101))
    count = min(most_legal(case), 1 + (ONE_TURN_BYTES - one) * 100 // max(100, many - one))
    while len(frame_of(case, count)) > ONE_TURN_BYTES:
        count -= 1
    return count


def elements_in(message: Struct) -> int:
    """Count the elements in all arrays of a request, as its decoder does."""
    found = 0
    for field in message.FIELDS:
        value = getattr(message, field.name)
        inner = value if isinstance(value, list) else [value]
        found += len(value) if isinstance(value, list) else 0
        found += sum(elements_in(each) for each in inner if isinstance(each, Struct))
    return found


@lru_cache(maxsize=4)
def frame_of(case: Case, count: int) -> bytes:
    """Encode the case's request with header, without the length before it."""
    return frame(build(case, count), case.version)


def frame(request: Message, version: int) -> bytes:
    """Encode a request with header, without the length before it."""
    key = ApiKey(request.API_KEY)
    header = struct.pack(">hhih", key, version, 7, 1) + b"c"
    if request_header_version(key, version) >= 2:
        header += b"\0"
    return header + request.encode(version)


def _struct(cls: type[Struct], case: Case, path: tuple[str, ...], count: int, number: int) -> Struct:
    found = cls()
    for field in _fields(cls, case.version):
        inner_path = path[1:] if path and path[0] == field.name else ()
        if field.kind == "array":
            wanted = count if path == (field.name,) else 1
            setattr(found, field.name, _array(field, case, inner_path, count, wanted))
        elif field.kind == "struct":
            if inner_path:
                setattr(found, field.name, _struct(field.item, case, inner_path, count, number))  # type: ignore[arg-type]
        else:
            setattr(found, field.name, _value(field, case, number))
    return found


@lru_cache(maxsize=64)
def _fields(cls: type[Struct], version: int) -> tuple[Field, ...]:
    """Return the fields that a struct has in a version."""
    return tuple(field for field in cls.FIELDS if field.versions.has(version))


def _array(field: Field, case: Case, path: tuple[str, ...], count: int, wanted: int) -> list[Any]:
    item = field.item
    assert item is not None
    numbers = [0] * wanted if case.naming is Naming.SAME else range(wanted)
    if isinstance(item, Field):
        item.name = field.name
        return [_value(item, case, number) for number in numbers]
    first = _struct(item, case, path, count, 0)
    if case.naming is Naming.SAME:
        return [first] * wanted
    return [first, *_copies(first, case, range(1, wanted))]


def _copies(first: Struct, case: Case, numbers: Iterable[int]) -> Iterator[Struct]:
    """Yield a copy of an array's first element for each number: its arrays and structs stay the same."""
    cls = type(first)
    values = {field.name: getattr(first, field.name) for field in _fields(cls, case.version)}
    numbered = _numbered_fields(cls, case.version)
    for number in numbers:
        yield cls(**values | {field.name: _value(field, case, number) for field in numbered})


@lru_cache(maxsize=64)
def _numbered_fields(cls: type[Struct], version: int) -> tuple[Field, ...]:
    """Return the fields of a struct whose values may depend on the number of an element."""
    return tuple(field for field in _fields(cls, version) if field.kind in ("string", "int32"))


def _value(field: Field, case: Case, number: int) -> Any:
    if field.name in VALUES and not (number and field.kind == "string"):
        return VALUES[field.name]
    if field.kind == "string":
        return f"{field.name}-{number}" if case.naming is Naming.UNKNOWN else WIDE_TOPIC
    if field.kind == "uuid":
        return bytes(16) if field.name == "topic_id" and case.api_key == ApiKey.METADATA else TOPIC_ID
    if field.kind.startswith(("int", "uint")):
        return number % 10_000 if field.kind == "int32" else field.default or 0
    if field.kind == "records":
        return b""
    if field.kind == "bytes":
        return b"" if field.default is None else field.default
    return field.default
