"""Tables of configuration keys, which the modules that use the keys declare, and the parsing of their values.

    DEF = ConfigDef((
        ConfigKey("segment.bytes", ConfigType.INT, 1 << 30, between(1 << 20), Importance.MEDIUM, "…", dynamic=True),
    ))
    values = DEF.parse({"segment.bytes": "1048576"})

Names are Kafka's, except those of Tidelog's own keys. A value is text (a file, the environment, the admin API) or
already of its type. An invalid one raises ConfigError, which names the key, the value and the allowed values in one
line; the value of a password is hidden. Topic overrides, DescribeConfigs, the command line and docs/configuration.md
all use these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, IntEnum
from typing import Any

from tidelog.protocol.errors import InvalidConfigError


class ConfigError(InvalidConfigError):
    """A configuration that cannot be used, such as an invalid value or a missing key. Clients get INVALID_CONFIG."""


class ConfigType(IntEnum):
    """Types of values, numbered as DescribeConfigs v3+ reports them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(Enum):
    """Importance of a key, as Kafka's documentation grades it."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Password(str):
    """Text that logs must not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "[hidden]"


class _NoDefault:
    """Default of a key that must be set."""

    def __repr__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT: Any = _NoDefault()

Validator = Callable[[Any], bool]


class Check:
    """A validator, with a text that says what it allows."""

    __slots__ = ("_accepts", "allowed")

    def __init__(self, accepts: Validator, allowed: str) -> None:
        self._accepts = accepts
        self.allowed = allowed

    def __call__(self, value: Any) -> bool:
        return self._accepts(value)


def between(lowest: float, highest: float | None = None) -> Check:
    """Return a check for numbers of at least ``lowest``, and of at most ``highest`` if given."""
    if highest is None:
        return Check(lambda value: value >= lowest, f"{lowest} or more")
    return Check(lambda value: lowest <= value <= highest, f"{lowest} to {highest}")


def one_of(*choices: str | None) -> Check:
    """Return a check for one of ``choices``; its text has None and empty text as "nothing"."""
    return Check(lambda value: value in choices, " or ".join(dict.fromkeys(choice or "nothing" for choice in choices)))


def each_of(*choices: str) -> Check:
    """Return a check for lists of ``choices``."""
    return Check(lambda value: all(item in choices for item in value), "a list of " + ", ".join(choices))


def non_empty() -> Check:
    """Return a check for text or lists that are not empty."""
    return Check(bool, "anything but empty")


_INTEGERS = {ConfigType.INT: 32, ConfigType.SHORT: 16, ConfigType.LONG: 64}
_ALLOWED = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.INT: "a 32-bit integer",
    ConfigType.SHORT: "a 16-bit integer",
    ConfigType.LONG: "a 64-bit integer",
    ConfigType.DOUBLE: "a number",
}


class ConfigKey:
    """One key; the object must not be changed. ``default`` is a value of the key's type, None (unset), or NO_DEFAULT. A
    ``dynamic`` key can be changed while a broker runs.
    """

    __slots__ = ("default", "doc", "dynamic", "importance", "name", "type", "validator")

    def __init__(  # positional, so that a declaration is one line in reading order
        self,
        name: str,
        type: ConfigType,
        default: Any = NO_DEFAULT,
        validator: Check | None = None,
        importance: Importance = Importance.MEDIUM,
        doc: str = "",
        *,
        dynamic: bool = False,
    ) -> None:
        self.name = name
        self.type = type
        self.default = default
        self.validator = validator
        self.importance = importance
        self.doc = doc
        self.dynamic = dynamic

    def __repr__(self) -> str:
        return f"ConfigKey({self.name}: {self.type.name} = {self.default!r})"

    @property
    def is_sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    @property
    def allowed(self) -> str:
        """The values that the key accepts, in words; empty if it accepts any."""
        return self.validator.allowed if self.validator is not None else _ALLOWED.get(self.type, "")

    def parse(self, value: Any) -> Any:
        """Parse ``value`` as the key's type and check it. Only a key whose default is None accepts None. Raises
        ConfigError."""
        if value is None:
            if self.default is None:
                return None
            raise self._error(value)
        try:
            parsed = _PARSERS[self.type](value, self.type)
        except (ValueError, TypeError, OverflowError):
            raise self._error(value) from None
        if self.validator is not None and not self.validator(parsed):
            raise self._error(value)
        return parsed

    def to_text(self, value: Any) -> str | None:
        """Format ``value`` as Kafka writes it, in DescribeConfigs and in properties files."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list | tuple):
            return ",".join(value)
        return str(value)

    def _error(self, value: Any) -> ConfigError:
        shown = "[hidden]" if self.is_sensitive else repr(value)
        allowed = f"; allowed: {self.allowed}" if self.allowed else ""
        return ConfigError(f"Invalid value {shown} for configuration {self.name}{allowed}")


def _parse_boolean(value: Any, _: ConfigType) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError(value)
    return text == "true"


def _parse_integer(value: Any, type: ConfigType) -> int:
    if isinstance(value, bool | float):
        raise TypeError(value)
    text = str(value).strip()
    if "_" in text:  # Python reads 1_000, no other reader of these files does
        raise ValueError(value)
    number = int(text)
    if not -(1 << _INTEGERS[type] - 1) <= number < 1 << _INTEGERS[type] - 1:
        raise ValueError(value)
    return number


def _parse_double(value: Any, _: ConfigType) -> float:
    if isinstance(value, bool):
        raise TypeError(value)
    number = float(value)
    if number != number:
        raise ValueError(value)
    return number


def _parse_list(value: Any, _: ConfigType) -> list[str]:
    items = value.split(",") if isinstance(value, str) else list(value)
    items = [item.strip() for item in items]
    return [] if items == [""] else items


def _parse_text(value: Any, _: ConfigType) -> str:
    return str(value).strip()


def _parse_password(value: Any, _: ConfigType) -> Password:
    return Password(value)


_PARSERS: dict[ConfigType, Callable[[Any, ConfigType], Any]] = {
    ConfigType.BOOLEAN: _parse_boolean,
    ConfigType.STRING: _parse_text,
    ConfigType.INT: _parse_integer,
    ConfigType.SHORT: _parse_integer,
    ConfigType.LONG: _parse_integer,
    ConfigType.DOUBLE: _parse_double,
    ConfigType.LIST: _parse_list,
    ConfigType.CLASS: _parse_text,
    ConfigType.PASSWORD: _parse_password,
}


class ConfigDef:
    """A table of keys, which iteration yields in order of declaration."""

    __slots__ = ("keys",)

    def __init__(self, keys: Iterable[ConfigKey]) -> None:
        self.keys: dict[str, ConfigKey] = {}
        for key in keys:
            assert key.name not in self.keys, f"{key.name} is declared twice"
            self.keys[key.name] = key

    def __iter__(self) -> Iterator[ConfigKey]:
        return iter(self.keys.values())

    def __len__(self) -> int:
        return len(self.keys)

    def __contains__(self, name: object) -> bool:
        return name in self.keys

    def __getitem__(self, name: str) -> ConfigKey:
        return self.keys[name]

    def __add__(self, other: ConfigDef) -> ConfigDef:
        return ConfigDef((*self, *other))

    def parse(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a value for every key: the given one, or its default. Unknown names are ignored; :meth:`find_unknown`
        lists them.

        Raises ConfigError for an invalid value, or if a key without a default is missing.
        """
        values = {}
        for name, key in self.keys.items():
            if name in given:
                values[name] = key.parse(given[name])
            elif key.default is NO_DEFAULT:
                raise ConfigError(f"Missing required configuration {name}, which has no default value")
            else:
                values[name] = key.default
        return values

    def parse_given(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Parse the values of the given keys only, as overrides. Raises ConfigError for unknown keys, too."""
        for name in self.find_unknown(given):
            raise ConfigError(f"Unknown configuration {name}")
        return {name: self.keys[name].parse(value) for name, value in given.items()}

    def find_unknown(self, given: Mapping[str, Any]) -> list[str]:
        """Return the names in ``given`` that are not keys."""
        return [name for name in given if name not in self.keys]
