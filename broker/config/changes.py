"""Changes of configs as requests name them: set, delete, append and subtract, checked against a table of keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from tidelog.protocol.config_def import ConfigDef
from tidelog.protocol.errors import (
    InvalidConfigError,
    InvalidRequestError,
)

MAX_VALUE_BYTES = 32_767
"""Longest string of a metadata record. Source of the limit and its message: ConfigurationControlManager of Kafka
4.3."""


class Operation(IntEnum):
    """Operation of IncrementalAlterConfigs on a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """Change of one key."""

    name: str
    operation: Operation
    value: str | None


def check_known(config_def: ConfigDef, texts: Mapping[str, str], kind: str) -> None:
    """Raise InvalidConfigError for the first key that the table does not have, and for a value that is longer than a
    record of the metadata log can hold: elements can be appended to a list again and again."""
    for name in config_def.find_unknown(texts):
        raise InvalidConfigError(f"Unknown {kind} config name: {name}")
    if any(len(text.encode()) > MAX_VALUE_BYTES for text in texts.values()):
        raise InvalidConfigError(
            f"The configuration value cannot be added because it exceeds the maximum value size of {MAX_VALUE_BYTES} "
            f"bytes."
        )


def apply_changes(config_def: ConfigDef, texts: Mapping[str, str], changes: Iterable[Change]) -> dict[str, str]:
    """Return the texts after these changes. Keys that are set or deleted are not checked, nor are values that are set.

    Raises InvalidConfigError for a list operation on a key that is unknown or not a list, or with elements that the key
    does not allow. Raises InvalidRequestError for a value that is missing or a key named twice."""
    changed = dict(texts)
    seen: set[str] = set()
    for change in changes:
        if change.name in seen:
            raise InvalidRequestError(f"Error due to duplicate config keys: {change.name}")
        seen.add(change.name)
        if change.operation is Operation.DELETE:
            changed.pop(change.name, None)
            continue
        if change.value is None:
            raise InvalidRequestError(f"Null value not supported for : {change.name}")
        if change.operation is Operation.SET:
            changed[change.name] = change.value
        else:
            changed[change.name] = change_list(config_def, changed.get(change.name), change)
    return changed


def change_list(config_def: ConfigDef, text: str | None, change: Change) -> str:
    """Append elements to a list value or remove them, beginning with the default if no value is set. Raises
    InvalidConfigError.
    """
    from tidelog.protocol.config_def import ConfigType

    key = config_def.keys.get(change.name)
    if key is None:
        raise InvalidConfigError(f"Unknown config name: {change.name}")
    if key.type is not ConfigType.LIST:
        raise InvalidConfigError(f"Can't {change.operation.name} to key {change.name} because its type is not LIST.")
    old = key.parse(text) if text is not None else list(key.default or ())
    given = key.parse(change.value)
    if change.operation is Operation.APPEND:
        return ",".join([*old, *(item for item in given if item not in old)])
    return ",".join(item for item in old if item not in given)


def operation_of(number: int) -> Operation:
    """Return the operation with this number. Raises InvalidRequestError."""
    try:
        return Operation(number)
    except ValueError:
        raise InvalidRequestError(f"Unknown operation type {number}") from None
