"""Parsing and checking of configuration values."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.protocol.config_def import (
    NO_DEFAULT,
    ConfigDef,
    ConfigError,
    ConfigKey,
    ConfigType,
    Importance,
    Password,
    between,
    each_of,
    non_empty,
    one_of,
)

BYTES = ConfigKey("segment.bytes", ConfigType.INT, 1024, between(14, 4096), Importance.HIGH, "Size of a segment.")


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        (ConfigType.BOOLEAN, " True ", True),
        (ConfigType.BOOLEAN, False, False),
        (ConfigType.INT, "-2147483648", -(1 << 31)),
        (ConfigType.INT, 5, 5),
        (ConfigType.SHORT, "32767", 32767),
        (ConfigType.LONG, "9223372036854775807", (1 << 63) - 1),
        (ConfigType.DOUBLE, "0.5", 0.5),
        (ConfigType.DOUBLE, 1, 1.0),
        (ConfigType.LIST, "a, b,c", ["a", "b", "c"]),
        (ConfigType.LIST, "", []),
        (ConfigType.LIST, ("a", "b"), ["a", "b"]),
        (ConfigType.STRING, " text ", "text"),
        (ConfigType.CLASS, "a.b.C", "a.b.C"),
        (ConfigType.PASSWORD, " secret ", " secret "),
    ],
)
def test_values_of_each_type_are_parsed(type: ConfigType, text: Any, value: Any) -> None:
    assert ConfigKey("key", type).parse(text) == value


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (ConfigType.BOOLEAN, "yes"),
        (ConfigType.INT, "2147483648"),
        (ConfigType.INT, "1.5"),
        (ConfigType.INT, "1_000"),
        (ConfigType.INT, True),
        (ConfigType.INT, 1.5),
        (ConfigType.INT, ""),
        (ConfigType.SHORT, "40000"),
        (ConfigType.DOUBLE, "nan"),
        (ConfigType.DOUBLE, "half"),
        (ConfigType.DOUBLE, True),
        (ConfigType.LIST, 5),
    ],
)
def test_bad_value_of_a_type_is_refused(type: ConfigType, text: Any) -> None:
    with pytest.raises(ConfigError, match="for configuration key"):
        ConfigKey("key", type).parse(text)


def test_error_names_key_value_and_allowed_values() -> None:
    with pytest.raises(ConfigError) as raised:
        BYTES.parse("5000")
    assert str(raised.value) == "Invalid value '5000' for configuration segment.bytes; allowed: 14 to 4096"
    assert raised.value.code == 40


def test_error_never_shows_a_password() -> None:
    key = ConfigKey("ssl.key.password", ConfigType.PASSWORD, None, non_empty())
    assert key.is_sensitive
    with pytest.raises(
        ConfigError, match=r"\[hidden\] for configuration ssl.key.password; allowed: anything but empty"
    ):
        key.parse("")
    assert repr(key.parse("secret")) == "[hidden]"
    assert str(Password("secret")) == "secret"


@pytest.mark.parametrize(
    ("check", "good", "bad", "allowed"),
    [
        (between(1), 1, 0, "1 or more"),
        (between(1, 3), 3, 4, "1 to 3"),
        (one_of("delete", None, ""), "delete", "other", "delete or nothing"),
        (each_of("compact", "delete"), ["delete"], ["delete", "x"], "a list of compact, delete"),
        (non_empty(), "a", "", "anything but empty"),
    ],
)
def test_validators_accept_and_refuse_values(check: Any, good: Any, bad: Any, allowed: str) -> None:
    assert check(good)
    assert not check(bad)
    assert check.allowed == allowed


def test_null_is_a_value_where_it_is_the_default() -> None:
    assert ConfigKey("key", ConfigType.STRING, None).parse(None) is None
    with pytest.raises(ConfigError):
        BYTES.parse(None)


@pytest.mark.parametrize(
    ("value", "text"), [(None, None), (True, "true"), (False, "false"), (["a", "b"], "a,b"), (5, "5"), (0.5, "0.5")]
)
def test_a_value_is_written_as_text(value: Any, text: str | None) -> None:
    assert BYTES.to_text(value) == text


def test_parse_gives_every_key_a_value() -> None:
    table = ConfigDef([BYTES, ConfigKey("name", ConfigType.STRING, NO_DEFAULT)])
    assert table.parse({"name": "x", "other": "y"}) == {"segment.bytes": 1024, "name": "x"}
    with pytest.raises(ConfigError, match="Missing required configuration name"):
        table.parse({})


def test_parse_given_takes_only_keys_that_exist() -> None:
    table = ConfigDef([BYTES])
    assert table.parse_given({"segment.bytes": "20"}) == {"segment.bytes": 20}
    assert table.find_unknown({"segment.bytes": "20", "segment.byte": "1"}) == ["segment.byte"]
    with pytest.raises(ConfigError, match=r"Unknown configuration segment\.byte"):
        table.parse_given({"segment.byte": "1"})


def test_table_is_a_collection_in_order() -> None:
    other = ConfigKey("flush.ms", ConfigType.LONG, None)
    table = ConfigDef([BYTES]) + ConfigDef([other])
    assert list(table) == [BYTES, other]
    assert (len(table), "flush.ms" in table, "x" in table, table["flush.ms"]) == (2, True, False, other)
    assert repr(BYTES) == "ConfigKey(segment.bytes: INT = 1024)"
    assert repr(NO_DEFAULT) == "NO_DEFAULT"


def test_key_without_validator_allows_its_type() -> None:
    assert ConfigKey("key", ConfigType.SHORT).allowed == "a 16-bit integer"
    assert ConfigKey("key", ConfigType.STRING).allowed == ""


def test_key_declared_twice_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="twice"):
        ConfigDef([BYTES, BYTES])
