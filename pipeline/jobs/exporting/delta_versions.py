"""The state (exported offsets) to which a Delta table's rows belong: that of the newest export, unless the table was
restored since.

    version 0    export, state 1              txn 1
    version 1    export, state 2              txn 2
    version 2    OPTIMIZE of another writer   txn 2, state 2
    version 3    RESTORE to version 0         txn 2, state 1: the rows of state 2 are exported again, as state 3

A table's transaction number never goes back, so it does not show a RESTORE; the metadata of commits does. The history
is walked back from the newest commit: a commit of an export ends the walk, a RESTORE leads to the version it names. If
neither is found because older commits were cleaned up, there was no recent RESTORE, and the transaction number counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.pipeline.job_errors import JobError

if TYPE_CHECKING:
    from deltalake import DeltaTable

APP_ID = "tidelog.export"
STATE_KEY = "tidelog.export"
"""The key of the state's number in a commit's metadata."""
RUN_KEY = "tidelog.export.run"
"""The key of the run that made the commit."""
#: Commits that are read at first: most are commits of exports, so the first few are usually enough.
FIRST_COMMITS = 16


class Position(NamedTuple):
    """Numbers of the newest committed state, and of the state to which the table's rows belong; 0 before the first
    commit."""

    newest: int
    rows: int


def position_of(table: DeltaTable | None) -> Position:
    """Find the position of a table. Raises JobError after a restore to a version that its history does not have."""
    if table is None:
        return Position(0, 0)
    newest = table.transaction_version(APP_ID) or 0
    return Position(newest, _state_at(table, newest) if newest else 0)


class Commit(NamedTuple):
    """The commit of a state: the table's version and the run, "" if the commit does not name it."""

    version: int
    run: str


def commit_of(table: DeltaTable, number: int) -> Commit | None:
    """Find the commit of a state; None if it has expired from the history."""
    for commit in _history(table):
        if commit.get(STATE_KEY) == str(number):
            return Commit(commit["version"], commit.get(RUN_KEY, ""))
    return None


def _history(table: DeltaTable) -> Iterator[dict[str, Any]]:
    """Yield the metadata of commits, the newest first, read in growing blocks."""
    seen, count = 0, FIRST_COMMITS
    while True:
        found = table.history(count)
        yield from found[seen:]
        if len(found) < count:
            return
        seen, count = count, count * 8


def _state_at(table: DeltaTable, newest: int) -> int:
    """Find the number of the state at the table's version."""
    wanted, was_restored = table.version(), False
    for commit in _history(table):
        if commit["version"] > wanted:
            continue
        if STATE_KEY in commit:
            return int(commit[STATE_KEY])
        if commit.get("operation") == "RESTORE":
            wanted, was_restored = _restored_version(table, commit), True
    if was_restored:
        raise _unknown(table)
    return newest


def _restored_version(table: DeltaTable, commit: dict[str, Any]) -> int:
    """Find the version that a RESTORE names, by its number or by a time."""
    parameters = commit.get("operationParameters", {})
    if parameters.get("version") is not None:
        return int(parameters["version"])
    if parameters.get("datetime") is None:
        raise _unknown(table)
    newest = table.version()
    table.load_as_version(datetime.fromtimestamp(int(parameters["datetime"]) / 1000, UTC))
    found = table.version()
    table.load_as_version(newest)
    return found


def _unknown(table: DeltaTable) -> JobError:
    return JobError(
        f"Delta table {table.table_uri} was restored to a version that its history does not name: its offsets "
        "are not known; expected a new table"
    )
