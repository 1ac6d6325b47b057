"""All declared messages, and arbitrary values for them."""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable
from typing import Any, Protocol

from tidelog.protocol import messages as package
from tidelog.protocol.schema.fields import Field, Message, Struct, VersionRange


def all_messages() -> list[type[Message]]:
    """List every message class in ``tidelog.protocol.messages``, in order of module and declaration."""
    found: list[type[Message]] = []
    for module_info in pkgutil.iter_modules(package.__path__, "tidelog.protocol.messages."):
        module = importlib.import_module(module_info.name)
        classes = [value for value in vars(module).values() if isinstance(value, type)]
        found += [cls for cls in classes if issubclass(cls, Message) and cls.__module__ == module.__name__]
    return found


def all_versions() -> list[tuple[type[Message], int]]:
    """List every (message, version) that is declared."""
    return [(cls, version) for cls in all_messages() for version in versions(cls.VERSIONS)]


def versions(declared: VersionRange) -> range:
    return range(declared.lowest, declared.highest + 1)


class Choices(Protocol):
    """A source of arbitrary integers: a seeded generator, or Hypothesis."""

    def integer(self, lowest: int, highest: int) -> int: ...


class RandomChoices:
    """Integers of a seeded generator."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, lowest: int, highest: int) -> int:
        return self._random.randint(lowest, highest)


class DrawnChoices:
    """Integers that Hypothesis draws, and shrinks: ``draw_integer`` is called with the bounds."""

    def __init__(self, draw_integer: Callable[[int, int], int]) -> None:
        self._draw = draw_integer

    def integer(self, lowest: int, highest: int) -> int:
        return self._draw(lowest, highest)


_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_TEXTS = ("", "t", "topic-name", "ünïcode", "日本語", "\U0001f600", "a" * 127, "b" * 200)


def arbitrary(cls: type[Struct], version: int, choices: Choices) -> Any:
    """Build an instance of ``cls`` with arbitrary values in its fields at ``version``, and defaults in the others."""
    value: Any = cls()
    for field in cls.FIELDS:
        if field.versions.has(version) and choices.integer(0, 7):
            setattr(value, field.name, _arbitrary_field(field, version, choices))
    return value


def _arbitrary_field(field: Field, version: int, choices: Choices) -> Any:
    if field.nullable.has(version) and not choices.integer(0, 3):
        return None
    if field.kind == "struct":
        assert isinstance(field.item, type)
        return arbitrary(field.item, version, choices)
    if field.kind == "array":
        return [_arbitrary_item(field.item, version, choices) for _ in range(choices.integer(0, 3))]
    return _arbitrary_primitive(field.kind, choices)


def _arbitrary_item(item: Field | type[Struct] | None, version: int, choices: Choices) -> Any:
    if isinstance(item, Field):
        return _arbitrary_primitive(item.kind, choices)
    assert item is not None
    return arbitrary(item, version, choices)


def _arbitrary_primitive(kind: str, choices: Choices) -> Any:
    if kind in _BITS:
        bits = _BITS[kind]
        return choices.integer(-(1 << bits - 1), (1 << bits - 1) - 1)
    if kind in ("uint16", "uint32"):
        return choices.integer(0, (1 << int(kind[4:])) - 1)
    if kind == "bool":
        return bool(choices.integer(0, 1))
    if kind == "float64":
        return choices.integer(-1000, 1000) / 8
    if kind == "string":
        return _TEXTS[choices.integer(0, len(_TEXTS) - 1)]
    if kind == "uuid":
        return choices.integer(0, (1 << 64) - 1).to_bytes(8, "big") * 2
    return bytes(range(256))[: choices.integer(0, 256)]
