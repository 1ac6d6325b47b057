"""The same requests to two brokers: built from plain values, with responses as plain values that can be compared.

Values that a broker chooses freely (member ids, producer ids, topic ids, ports) are replaced by the order in which they
first appear. So an id must appear in the same fields as in the responses of the other broker. Times are
replaced by their sign.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any

from tidelog.client import Client, ClientError
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.schema.fields import Struct
from tidelog.protocol.types import ZERO_UUID

_CHOSEN = {
    "member_id": "member",
    "leader": "member",
    "producer_id": "producer",
    "topic_id": "topic",
    "cluster_id": "cluster",
    "port": "port",
    "session_id": "session",
    "client_instance_id": "instance",
    "subscription_id": "subscription",
    "log_dir": "directory",
    "replica_directory_id": "directory",
}
"""Fields whose values a broker chooses -> the kind of thing that the value identifies."""
_ORDER = ("name", "topic", "topic_name", "group_id", "key", "partition_index", "partition", "resource_name", "user")
"""Fields by which the items of a list are sorted, because brokers keep some in hash maps."""
_LEFT_OUT = {"throttle_time_ms", "total_bytes", "usable_bytes", "documentation"}
_TIME = re.compile(r".*(timestamp|_time_ms)$")
_CHOSEN_NOWHERE = (None, "", -1, 0, ZERO_UUID)


class Broker:
    """A client of one broker; ``answers`` has the responses so far, in a form that can be compared."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.answers: list[tuple[str, Any]] = []
        self._client: Client | None = None
        self._ids: dict[tuple[str, Any], str] = {}

    def versions(self) -> dict[int, tuple[int, int]]:
        """Map each API key to the lowest and highest version served."""
        return self._connected().api_versions()

    def ask(self, api: str, version: int, /, **fields: Any) -> Any:
        """Send a request, and add the response to ``answers``.

        Returns the response, None if the broker closed the connection instead.
        """
        response = self.ask_quietly(api, version, **fields)
        self.answers.append((f"{api} v{version} {fields}", "closed" if response is None else self.plain(response)))
        return response

    def ask_quietly(self, api: str, version: int, /, **fields: Any) -> Any:
        """Send a request without adding the response to ``answers``, for preparations."""
        module = importlib.import_module(f"tidelog.protocol.messages.{api}")
        name = "".join(word.capitalize() for word in api.split("_"))
        request = build(getattr(module, f"{name}Request"), fields, version)
        try:
            return self._connected().send(request, getattr(module, f"{name}Response"), version)
        except ClientError:
            self.close()
            return None

    def begin(self) -> None:
        """Clear the responses and ids, before another script."""
        self.answers.clear()
        self._ids.clear()

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> Client:
        if self._client is None:
            self._client = Client(self.bootstrap, timeout_s=60.0)
        return self._client

    def plain(self, value: Any, name: str = "") -> Any:
        """Convert a value to dictionaries, lists and scalars; values that a broker chooses are replaced."""
        if isinstance(value, Struct):
            return {
                field.name: self.plain(getattr(value, field.name), field.name)
                for field in value.FIELDS
                if field.name not in _LEFT_OUT
            }
        if isinstance(value, list):
            if value and isinstance(value[0], int):
                return sorted(value)
            return sorted((self.plain(item, name) for item in sorted(value, key=_sort_key)), key=repr)
        if name in _CHOSEN and value not in _CHOSEN_NOWHERE:
            kind = _CHOSEN[name]
            number = sum(of == kind for of, _ in self._ids)
            return self._ids.setdefault((kind, value), f"<{kind} {number}>")
        if name == "error_message":
            return "<text>" if value else None
        if _TIME.match(name) and isinstance(value, int):
            return (value > 0) - (value < 0)
        if name == "records" and value is not None:
            return [_plain_batch(batch) for batch in iter_batches(value)]
        return bytes(value) if isinstance(value, memoryview) else value


def _sort_key(item: Any) -> tuple[str, ...]:
    """Return the key by which the structs of a list are sorted; the same for all scalars, which keep their order."""
    return tuple(str(getattr(item, name)) for name in _ORDER if getattr(item, name, None) is not None)


def _plain_batch(batch: Any) -> Any:
    records = [(r.offset, None if r.value is None else bytes(r.value)) for r in batch.records()]
    return {"magic": batch.magic, "size": batch.size_in_bytes, "records": records}


def build(cls: type[Struct], fields: Mapping[str, Any], version: int) -> Any:
    """Build a struct from plain values: dictionaries for structs, lists for arrays. Fields that the version lacks are
    left out.
    """
    values = {}
    for field in cls.FIELDS:
        if field.name not in fields:
            continue
        if not field.versions.has(version):
            continue
        value = fields[field.name]
        item = field.item
        if isinstance(item, type) and issubclass(item, Struct):
            value = _build_all(item, value, version)
        values[field.name] = value
    unknown = set(fields) - {field.name for field in cls.FIELDS}
    assert not unknown, f"{cls.__name__} has no {unknown}"
    return cls(**values)


def _build_all(item: type[Struct], value: Any, version: int) -> Any:
    if isinstance(value, list):
        return [build(item, part, version) for part in value]
    return None if value is None else build(item, value, version)
