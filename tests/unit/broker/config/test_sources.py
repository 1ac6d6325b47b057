from __future__ import annotations

import pytest

from tidelog.broker.config.sources import (
    PropertiesError,
    parse_properties,
    properties_from_environment,
    properties_from_overrides,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        ("a = 1 ", {"a": "1 "}),
        ("  a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a\t=\t1", {"a": "1"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("# comment\n! comment\n\n   \na=1", {"a": "1"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=b=c", {"a": "b=c"}),
        ("listeners=PLAINTEXT://:9092", {"listeners": "PLAINTEXT://:9092"}),
        ("a=1,\\\n   2,\\\n   3", {"a": "1,2,3"}),
        ("a=1\\\\", {"a": "1\\"}),
        ("a=1\\", {"a": "1"}),
        ("a=1\\\n# not a comment", {"a": "1# not a comment"}),
        ("a\\=b=1", {"a=b": "1"}),
        ("a\\ b = 1", {"a b": "1"}),
        ("a=\\t\\n\\r\\f\\x", {"a": "\t\n\r\fx"}),
        ("a=\\u00e9\\u20AC", {"a": "é€"}),
        ("a=x\\uD83C\\uDF4A", {"a": "x🍊"}),
    ],
)
def test_properties_are_parsed_as_java_parses_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz"])
def test_a_malformed_escape_is_refused(text: str) -> None:
    with pytest.raises(PropertiesError, match="hexadecimal"):
        parse_properties(text)


@pytest.mark.parametrize("text", ["a=\\uD83C", "a=\\uDF4A\\uD83C", "a=\\uD83Cx"])
def test_half_of_a_character_is_malformed(text: str) -> None:
    """It could not be written in UTF-8, as a password or a name."""
    with pytest.raises(PropertiesError, match="half"):
        parse_properties(text)


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("KAFKA_LOG_RETENTION_MS", "log.retention.ms"),
        ("KAFKA_FOO__BAR", "foo_bar"),
        ("KAFKA_FOO___BAR", "foo-bar"),
        ("KAFKA_LISTENER_NAME_MY___LISTENER_SSL_KEYSTORE__X", "listener.name.my-listener.ssl.keystore_x"),
    ],
)
def test_variables_are_read_as_the_apache_image_reads_them(variable: str, key: str) -> None:
    assert properties_from_environment({variable: "1"}) == {key: "1"}


@pytest.mark.parametrize(
    ("advertised", "listeners"),
    [
        ("PLAINTEXT://broker.example:9092", "PLAINTEXT://0.0.0.0:9092"),
        ("A://localhost:9092,B://[::1]:19092,C://:1", "A://0.0.0.0:9092,B://0.0.0.0:19092,C://0.0.0.0:1"),
    ],
)
def test_advertised_listeners_alone_are_listened_to(advertised: str, listeners: str) -> None:
    assert properties_from_environment({"KAFKA_ADVERTISED_LISTENERS": advertised})["listeners"] == listeners
    given = {"KAFKA_ADVERTISED_LISTENERS": advertised, "KAFKA_LISTENERS": "X://:1"}
    assert properties_from_environment(given)["listeners"] == "X://:1"


@pytest.mark.parametrize("variable", ["PATH", "KAFKA_OPTS", "KAFKA_HEAP_OPTS", "KAFKA_VERSION", "kafka_node_id"])
def test_other_variables_are_left_alone(variable: str) -> None:
    assert properties_from_environment({variable: "1"}) == {}


def test_overrides_are_split_at_the_first_equals_sign_and_later_ones_win() -> None:
    assert properties_from_overrides(["a=1", " b = x=y ", "a=2", "c="]) == {"a": "2", "b": "x=y", "c": ""}


@pytest.mark.parametrize("override", ["a", "=1", " =1"])
def test_a_malformed_override_is_refused(override: str) -> None:
    with pytest.raises(PropertiesError, match=r"expected key=value"):
        properties_from_overrides([override])


def test_an_override_without_a_key_is_not_repeated() -> None:
    """A space may cut a password off from its key."""
    with pytest.raises(PropertiesError) as raised:
        properties_from_overrides(["ssl.key.password hidden"])
    assert "hidden" not in str(raised.value)
