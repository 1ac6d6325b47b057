"""Hash of keys by which groups and transactional ids are spread over the partitions of an internal topic."""

from __future__ import annotations


def java_string_hash(text: str) -> int:
    """Compute the absolute value of ``String.hashCode``, 0 where there is none: how keys are spread over an internal
    topic.
    """
    value = 0
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    if value >= 0x80000000:
        value = 0x100000000 - value
    return value & 0x7FFFFFFF
