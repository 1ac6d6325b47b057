"""Hash of a coordinator's key (group id, transactional id, key of a share partition). It selects the partition of the
internal topic."""

from __future__ import annotations


def java_string_hash(text: str) -> int:
    """Compute the absolute value of Java's ``String.hashCode``; 0 for -2^31, whose absolute value is not an int."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    if value >= 0x80000000:
        value = 0x100000000 - value
    return value & 0x7FFFFFFF
