"""The state that exports have left in an Iceberg table: which offsets it has.

    a snapshot's summary       the state that an export's commit made
    the table's properties     the newest of these, with that snapshot's id and sequence number: snapshots expire

A long state, of many partitions, is written compressed (base64 of zlib): each of a table's snapshots has one, and all
lie in its metadata file. The newest snapshot's ancestors are looked through for the first that has a state; after a
rollback that is an older one than the properties'.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING

from tidelog.pipeline.export.manifest import Manifest
from tidelog.pipeline.job_errors import JobError

if TYPE_CHECKING:
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

STATE_KEY = "tidelog.export"
STATE_SNAPSHOT = "tidelog.export.snapshot"
STATE_SEQUENCE = "tidelog.export.sequence"
"""The key of that snapshot's sequence number: snapshots that come after it have larger ones."""

#: A longer state is compressed; that of some forty partitions is not, so a person can read it.
PLAIN_CHARACTERS = 4096
#: Bytes of a state; a million partitions have less.
MOST_BYTES = 1 << 30


def pack(state: Manifest) -> str:
    """Return a state as the text that a snapshot and the table's properties hold."""
    text = json.dumps(json.loads(state.to_json()), separators=(",", ":"))
    return text if len(text) <= PLAIN_CHARACTERS else base64.b64encode(zlib.compress(text.encode())).decode()


def unpack(text: str, place: str) -> Manifest:
    """Read a state from such a text; ``place`` names it in the error. Raises JobError."""
    if not text.startswith("{"):
        try:
            text = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), MOST_BYTES).decode()
        except (ValueError, zlib.error) as error:
            raise JobError(f"{place} is no state of a Tidelog export: {error}") from error
    return Manifest.from_json(text, place)


def state_of(table: Table) -> Manifest:
    """Read the newest state that an export has left: in a snapshot's summary, or in the table's properties where the
    snapshot has expired. Raises JobError.
    """
    snapshot = table.current_snapshot()
    while snapshot is not None:
        text = state_text(snapshot)
        if text is not None:
            return unpack(text, f"the summary of snapshot {snapshot.snapshot_id}")
        parent = None if snapshot.parent_snapshot_id is None else table.snapshot_by_id(snapshot.parent_snapshot_id)
        if parent is None:
            return _state_of_properties(table, snapshot)
        snapshot = parent
    return Manifest()


def _state_of_properties(table: Table, oldest: Snapshot) -> Manifest:
    """Read the state in the table's properties, where the snapshot that it belongs to has expired. ``oldest``: the
    first of the newest snapshot's ancestors that is kept. Raises JobError where there is no state but a snapshot before
    has expired, and where its snapshot was rolled back: it is there, or ``oldest`` is older than it.
    """
    text = table.properties.get(STATE_KEY)
    if text is None:
        is_unknown = oldest.parent_snapshot_id is not None
    else:
        is_there = table.snapshot_by_id(int(table.properties[STATE_SNAPSHOT])) is not None
        sequence = int(table.properties.get(STATE_SEQUENCE, 0))  # 0 in tables of format 1, too
        is_unknown = is_there or (oldest.sequence_number or 0) < sequence
    if is_unknown:
        raise JobError(
            f"Iceberg table {'.'.join(table.name())}: the snapshot has expired or was rolled back that says which "
            "offsets the table has; expected a new table"
        )
    return Manifest() if text is None else unpack(text, "the table's properties")


def state_text(snapshot: Snapshot) -> str | None:
    """Read the state that an export left in a snapshot's summary, None where another writer made it."""
    summary = snapshot.summary
    return summary[STATE_KEY] if summary is not None and STATE_KEY in summary else None


def place_of(transaction: Transaction) -> dict[str, str]:
    """Return the properties that say which snapshot a transaction makes."""
    snapshot = transaction.table_metadata.current_snapshot()
    assert snapshot is not None
    return {STATE_SNAPSHOT: str(snapshot.snapshot_id), STATE_SEQUENCE: str(snapshot.sequence_number or 0)}
