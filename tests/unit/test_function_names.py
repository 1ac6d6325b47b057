"""The rule for names of functions."""

from __future__ import annotations

import pytest

from tests.support.function_names import NamedFunction, find_name_fault

VERBS = frozenset({"build", "close", "hold", "increment", "match"})


@pytest.mark.parametrize(
    ("name", "returns"),
    [
        ("build_response", "Response"),
        ("_close", "None"),
        ("maybe_increment_offset", "bool"),
        ("topic_deleted", "None"),
        ("connection_lost", "None"),
        ("is_open", "bool"),
        ("can_read", "bool"),
        ("crc_matches", "bool"),
        ("holds_schemas", "bool"),
        ("page_is_in_memory", "bool"),
        ("error_of", "Error"),
        ("of_topic", "Rules"),
        ("when_committed", "Deferred[None]"),
        ("to_json", "str"),
        ("known_topics", "set[str]"),
        ("key_seed", "int"),
        ("feed", "int"),
        ("initialOffset", "dict[str, int]"),
        ("main", "None"),
    ],
)
def test_a_name_that_is_plain(name: str, returns: str) -> None:
    assert find_name_fault(NamedFunction(1, name, returns, ()), VERBS) is None


@pytest.mark.parametrize(
    ("name", "returns"),
    [
        ("failed", "Response"),
        ("_told", "str"),
        ("alone", "Steps"),
        ("until_open", "Steps[None]"),
        ("in_thread", "Result"),
        ("without_nulls", "Any"),
        ("_fault", "None"),
        ("lost", "None"),
        ("answerable", "bool"),
        ("never", "bool"),
    ],
)
def test_a_name_that_is_a_riddle(name: str, returns: str) -> None:
    assert find_name_fault(NamedFunction(1, name, returns, ()), VERBS)


def test_a_property_may_have_any_name() -> None:
    assert find_name_fault(NamedFunction(1, "closed", "bool", ("property",)), VERBS) is None
