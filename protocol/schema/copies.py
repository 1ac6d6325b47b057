"""Copies of messages and their structs with some fields replaced."""

from __future__ import annotations

from typing import Any


def with_fields(struct: Any, **changed: Any) -> Any:
    """Return a copy of the struct with these fields replaced."""
    return type(struct)(**{field.name: getattr(struct, field.name) for field in struct.FIELDS} | changed)
