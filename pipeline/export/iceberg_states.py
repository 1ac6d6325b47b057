"""The state that exports keep in an Iceberg table: the offsets that the table has.

    a snapshot's summary       the state as of the export's commit
    the table's properties     a copy of the newest of these, with its snapshot's id and sequence number, because
                               snapshots expire

The long state of many partitions is compressed (base64 of zlib), because each snapshot has one, and all are in the
metadata file. The state is that of the current snapshot, or of its nearest ancestor that has one; after a rollback it
is older than the state in the properties.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING

from tidelog.pipeline.export.manifest import Manifest
from tidelog.pipeline.job_errors import JobError
from tidelog.protocol.foreign_text import decode_json

if TYPE_CHECKING:
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

STATE_KEY = "tidelog.export"
STATE_SNAPSHOT = "tidelog.export.snapshot"
STATE_SEQUENCE = "tidelog.export.sequence"
"""Keys of the table's properties: the id and the sequence number of the snapshot with the newest state. Later snapshots
have larger sequence numbers."""

#: A longer state is compressed. The state of some forty partitions is shorter, and stays readable.
PLAIN_CHARACTERS = 4096
#: Limit of a state's bytes after decompression; the state of a million partitions has fewer.
MAX_STATE_BYTES = 1 << 30


def pack(state: Manifest) -> str:
    """Encode a state as the text for a snapshot's summary and the table's properties."""
    text = json.dumps(decode_json(state.to_json()), separators=(",", ":"))
    return text if len(text) <= PLAIN_CHARACTERS else base64.b64encode(zlib.compress(text.encode())).decode()


def unpack(text: str, origin: str) -> Manifest:
    """Decode a state from the text of ``pack``; ``origin`` says where the text was found, for errors. Raises
    JobError."""
    if not text.startswith("{"):
        try:
            text = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), MAX_STATE_BYTES).decode()
        except (ValueError, zlib.error) as error:
            raise JobError(f"{origin} is not a state of a Tidelog export: {error}") from error
    return Manifest.from_json(text, origin)


def state_of(table: Table) -> Manifest:
    """Read the newest state of an export: from a snapshot's summary, or from the table's properties if the snapshot has
    expired. Raises JobError.
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
    """Read the state from the table's properties, if the snapshot that it belongs to has expired.

    ``oldest``: the oldest of the current snapshot and its ancestors that still exists. Raises JobError if there is no
    state but an ancestor has expired. Raises JobError, too, if the state's snapshot was rolled back: that snapshot
    still exists, or is newer than ``oldest``. A rollback is not noticed if ``oldest`` is a later snapshot of another
    writer.
    """
    text = table.properties.get(STATE_KEY)
    if text is None:
        is_unknown = oldest.parent_snapshot_id is not None
    else:
        is_there = table.snapshot_by_id(int(table.properties[STATE_SNAPSHOT])) is not None
        # 0 in tables of format 1, whose snapshots have no sequence numbers, and if a former release wrote the state
        sequence = int(table.properties.get(STATE_SEQUENCE, 0))
        is_unknown = is_there or (oldest.sequence_number or 0) < sequence
    if is_unknown:
        raise JobError(
            f"Iceberg table {'.'.join(table.name())}: the snapshot that recorded its offsets has expired or was "
            "rolled back; expected a new table"
        )
    return Manifest() if text is None else unpack(text, "the table's properties")


def state_text(snapshot: Snapshot) -> str | None:
    """Read the state from a snapshot's summary, None if another writer made the snapshot."""
    summary = snapshot.summary
    return summary[STATE_KEY] if summary is not None and STATE_KEY in summary else None


def snapshot_properties(transaction: Transaction) -> dict[str, str]:
    """Return the table properties with the id and sequence number of the snapshot that a transaction adds."""
    snapshot = transaction.table_metadata.current_snapshot()
    assert snapshot is not None
    return {STATE_SNAPSHOT: str(snapshot.snapshot_id), STATE_SEQUENCE: str(snapshot.sequence_number or 0)}
