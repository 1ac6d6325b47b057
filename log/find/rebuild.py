"""Rebuild of an IndexFile's slots with numpy: for files of many entries, after an unclean stop.

Same result as :func:`tidelog.log.find.engine.reference.restore_slots`. The chain of each slot is checked whole: entries
are brought in the order of their slots (a stable sort), so each one's predecessor in the slot stands before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidelog.log.find.engine.reference import INDEX_HEADER_BYTES, Restored

if TYPE_CHECKING:
    from tidelog.log.find.index_file import IndexFile

_ENTRY = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("diff", ">i4"), ("previous", ">i4")])


def restore_slots(file: IndexFile, count: int) -> Restored:
    """Rebuild the (zeroed) slots from entries 1 to ``count - 1``, each checked against them."""
    if count < 2:
        return Restored(0, -1)
    first_entry = INDEX_HEADER_BYTES + 4 * file.slots
    entries = np.frombuffer(file.data, _ENTRY, count, first_entry)[1:]
    slots = np.frombuffer(file.data, ">i4", file.slots, INDEX_HEADER_BYTES)
    hashes, offsets = entries["hash"].astype(np.int64), entries["offset"].astype(np.int64)
    numbers = np.arange(1, count, dtype=np.int64)
    of_slot = hashes % file.slots
    order = np.argsort(of_slot, kind="stable")
    previous = np.zeros(len(order), np.int64)
    follows = of_slot[order][1:] == of_slot[order][:-1]
    previous[order[1:][follows]] = numbers[order[:-1][follows]]
    wrong = (entries["previous"] != previous) | (hashes < 0) | (entries["diff"] < 0)
    wrong[1:] |= offsets[1:] <= offsets[:-1]
    wrong[:1] |= offsets[:1] < 0
    damaged = np.flatnonzero(wrong)
    if len(damaged):
        return Restored(int(numbers[damaged[0]]), -1)
    newest = np.ones(len(order), bool)
    newest[:-1] = ~follows
    slots[of_slot[order[newest]]] = numbers[order[newest]]
    return Restored(0, int(offsets[-1]))
