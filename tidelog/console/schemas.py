"""Decoding of values that name a schema of this broker's registry, to JSON.

    page's thread   decode: the id in a value's first bytes -> its schema -> the value
    loop thread     the registry's state, which is read from ``_schemas`` for the first value

A value that does not fit its schema is shown like a value without a schema. So is one that is nested more deeply than
Python's recursion limit allows. No value is decoded by a schema that lets few bytes stand for any number of items or
fields.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.broker.config.keys.admin import SCHEMA_REGISTRY_LISTENER
from tidelog.console.local_client import wait_for
from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.values.registry import MAGIC, RegisteredSchema, UndecodableError, split_header

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.schema_registry import records
    from tidelog.broker.schema_registry.service import Registry
    from tidelog.broker.schema_registry.state import State
    from tidelog.pipeline.values.json_form import JsonForm

SCHEMAS_TOPIC = "_schemas"
MAX_BYTES = 64 * 1024
"""A larger value is not decoded, because only a part of it could be shown."""


class DecodedValue(NamedTuple):
    """A decoded value as JSON, and the name of its schema for people."""

    value: Any
    schema: str


Decode = Callable[[bytes], DecodedValue | None]
"""A function that decodes a value; its result is None for a value that is shown without a schema."""


def as_bytes(_content: bytes) -> DecodedValue | None:
    """Return None: the value is not decoded."""
    return None


class Schemas:
    """The schemas of this broker's registry for the console's pages. ``close`` is called in the loop thread."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._registry: Registry | None = None

    def decoder(self) -> Decode:
        """Return the decoder of one page, which looks up each schema once."""
        if not self._broker.config.get_str(SCHEMA_REGISTRY_LISTENER):
            return as_bytes
        schema_of = cache(self._ask)
        return lambda content: decode(content, schema_of)

    def close(self) -> None:
        """End the registry's thread."""
        if self._registry is not None:
            self._registry.close()

    def _ask(self, number: int) -> RegisteredSchema | None:
        """Return a schema; None if it, or one that it refers to, cannot be found here. A page's thread. Raises
        ClientError."""
        return wait_for(asyncio.run_coroutine_threadsafe(self._find(number), self._broker.loop))

    async def _find(self, number: int) -> RegisteredSchema | None:
        from tidelog.broker.schema_registry.errors import RegistryError
        from tidelog.broker.schema_registry.service import Registry

        if self._registry is None:
            self._registry = Registry(self._broker)
        try:
            state = await self._registry.state()
            found = state.find_by_id(number)
            return await self._convert(state, found[0]) if found else None
        except (RegistryError, KeyError, UndecodableError):  # another broker leads the topic, or a reference is missing
            return None

    async def _convert(self, state: State, schema: records.RegisteredSchema) -> RegisteredSchema:
        """Convert a schema, and those that it refers to, from the registry's form to the decoder's, each once.

        Raises KeyError if a reference is missing, UndecodableError, RegistryError.
        """
        found: dict[tuple[str, int], RegisteredSchema] = {}
        for one in (*(referred for _, referred in state.resolve(schema.references)), schema):
            references = tuple((each.name, found[each.subject, each.version]) for each in one.references)
            found[one.subject, one.version] = RegisteredSchema(
                one.id, one.schema_type, await self._text(one), references
            )
        return found[schema.subject, schema.version]

    async def _text(self, schema: records.RegisteredSchema) -> str:
        if schema.schema_type != "PROTOBUF":
            return schema.text
        assert self._registry is not None
        return str((await self._registry.parse_version(schema)).model["serialized"])


def decode(content: bytes, schema_of: Callable[[int], RegisteredSchema | None]) -> DecodedValue | None:
    """Decode a value that names a schema; None for a value that is shown without a schema. Raises ClientError."""
    if content[:1] != bytes([MAGIC]) or len(content) > MAX_BYTES:
        return None
    try:
        number, payload = split_header(content)
        schema = schema_of(number)
        form = None if schema is None else form_of(schema)
        if schema is None or form is None:
            return None
        return DecodedValue(form.read(payload), f"{schema.kind.lower()}, schema {number}")
    except UndecodableError:
        return None


def form_of(schema: RegisteredSchema) -> JsonForm | None:
    """Return the JSON form of a schema; None if there is none, or a package is missing."""
    try:
        from tidelog.pipeline.values.json_form import json_form

        return json_form(schema)
    except (BadRequestError, ImportError):
        return None
