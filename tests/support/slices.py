"""Bytes of records that a read of a log returned as a slice of a file."""

from __future__ import annotations

import os
from typing import cast

from tidelog.protocol.transferable import TransferableRecords


def content_of(records: object) -> bytes:
    """Return the bytes of records, which may be a slice of a file. The file must have all of them; the slice is
    released."""
    if not isinstance(records, TransferableRecords):
        return bytes(cast(bytes, records))
    content = os.pread(records.file.fileno(), records.size, records.position)
    assert len(content) == records.size, "the slice goes beyond the end of its file"
    records.release()
    return content
