"""The search for records from Python: ``Tidelog(bootstrap).find(topic, key=...)`` yields them newest first.

    from tidelog import Tidelog

    for record in Tidelog("127.0.0.1:9092").find("orders", key="4711", begin="09:00", end="10:00"):
        print(record.offset, record.value)

Records are requested page by page from the broker's admin interface, whose address the broker returns; the next page is
requested when the last one is used up. Only the standard library is needed.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, cast
from urllib.parse import quote, urlencode

from tidelog.admin_interface import find_admin, parse_admin
from tidelog.client import DEFAULT_BOOTSTRAP, ClientError
from tidelog.client.connection import PLAIN
from tidelog.client.security import Security
from tidelog.client.settings import ClientSettings
from tidelog.log.find.times import parse_time, write_ms

PAGE_RECORDS = 1000
TIMEOUT_S = 60.0
"""Timeout of one answer; a broker waits up to 30 s for an index that lags."""


class FoundRecord(NamedTuple):
    """One record. ``timestamp`` in ms; keys, values and header values are bytes or None."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Tidelog:
    """A client of a running broker that finds records. Any thread; calls of ``find`` are independent."""

    def __init__(
        self,
        bootstrap: str = DEFAULT_BOOTSTRAP,
        *,
        admin: str | None = None,
        security: Security = PLAIN,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """``admin``: HOST:PORT or https://HOST:PORT of the admin interface, if the address from the broker cannot be
        used. ``timeout_s`` limits each wait for an answer."""
        self.bootstrap = bootstrap
        self._settings = ClientSettings(bootstrap, security, timeout_s)
        self._given = None if admin is None else parse_admin(admin)
        self._admin = self._given

    def find(
        self, topic: str, *, key: str | bytes | None = None, tag: str | bytes | None = None,
        begin: str | int | None = None, end: str | int | None = None, max_records: int | None = None,
        wait: bool = True, isolation: str = "read_uncommitted",
    ) -> Iterator[FoundRecord]:  # fmt: skip
        """Yield the records that match, newest first, lazily.

        ``tag`` is the value of the header that the topic's ``index.tag.header`` names; with ``key`` and ``tag`` both
        must match. ``begin`` and ``end`` are included: ms, ISO 8601, ``09:00`` of today, or ``15m`` ago, by clock and
        time zone of the caller's machine. ``max_records`` None means all. With ``wait`` the broker first
        indexes all records below the high watermarks of its replicas. ``isolation`` is as a consumer's
        ``isolation.level``. Raises ClientError, for example if there is no such topic or index; OSError; KafkaError if
        the user may not ask for the address.
        """
        parameters = {"format": "base64", "wait": str(wait).lower(), "isolation": isolation}
        for name, value in (("key", key), ("tag", tag)):
            if value is not None:
                raw = value.encode() if isinstance(value, str) else value
                parameters[f"{name}64"] = base64.b64encode(raw).decode()
        for name, moment in (("from", begin), ("to", end)):
            if moment is not None:
                parameters[name] = write_ms(to_ms(moment))
        return self._pages(topic, parameters, max_records)

    def _pages(self, topic: str, parameters: dict[str, str], max_records: int | None) -> Iterator[FoundRecord]:
        remaining = max_records
        while remaining is None or remaining > 0:
            wanted = PAGE_RECORDS if remaining is None else min(PAGE_RECORDS, remaining)
            answer = self._ask(topic, {**parameters, "max": str(wanted)})
            for entry in answer["records"]:
                yield decode_record(topic, entry)
            if answer["next"] is None:
                return
            parameters["next"] = answer["next"]
            if remaining is not None:
                remaining -= len(answer["records"])

    def _ask(self, topic: str, parameters: dict[str, str]) -> dict[str, Any]:
        interface = self._admin = self._admin or find_admin(self._settings)
        path = f"/topics/{quote(topic, safe='')}/records?{urlencode(parameters)}"
        try:
            status, answer = interface.ask(self._settings.security, "GET", path, self._settings.timeout_s)
        except OSError:
            self._admin = self._given  # after a restart the broker may have another address
            raise
        if status != 200:
            raise ClientError(answer.get("error", f"the admin interface answered {status}"))
        return cast(dict[str, Any], answer)


def to_ms(moment: str | int) -> int:
    """Parse a time in the local time zone to ms, because the broker may be in another zone. Raises ClientError."""
    if isinstance(moment, int):
        return moment
    try:
        return parse_time(moment, round(time.time() * 1000))
    except ValueError as error:
        raise ClientError(str(error)) from None


def decode_record(topic: str, entry: dict[str, Any]) -> FoundRecord:
    """Decode a record from the broker's JSON, whose bytes are in base64."""
    headers = tuple((name, _decode(value)) for name, value in entry["headers"])
    key, value = _decode(entry["key"]), _decode(entry["value"])
    return FoundRecord(topic, entry["partition"], entry["offset"], entry["timestamp"], key, value, headers)


def _decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
