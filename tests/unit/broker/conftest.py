"""Closes the metadata stores that tests leave open: since Python 3.13 an unclosed SQLite connection is a warning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tidelog.broker.metadata.store import SqliteMetadataStore
from tidelog.log.system.time import Time


@pytest.fixture(autouse=True)
def _stores_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened: list[SqliteMetadataStore] = []
    construct = SqliteMetadataStore.__init__

    def construct_and_note(store: SqliteMetadataStore, path: str, time: Time, *more: Any) -> None:
        construct(store, path, time, *more)
        opened.append(store)

    monkeypatch.setattr(SqliteMetadataStore, "__init__", construct_and_note)
    yield
    for store in opened:
        store.close()
