"""Names of contexts, and of subjects in a context."""

from __future__ import annotations

import pytest

from tidelog.broker.schema_registry.contexts import context_in, context_prefix, qualify, written_in


@pytest.mark.parametrize(
    ("name", "prefix"), [(".", ""), (":.:", ""), (".shop", ":.shop:"), (":.shop:", ":.shop:"), ("shop", ":.shop:")]
)
def test_a_context_is_the_beginning_of_its_subjects(name: str, prefix: str) -> None:
    assert context_prefix(name) == prefix


@pytest.mark.parametrize(
    ("subject", "prefix", "whole"),
    [
        ("orders", "", "orders"),
        ("orders", ":.shop:", ":.shop:orders"),
        (":.shop:orders", "", ":.shop:orders"),
        (":.shop:orders", ":.other:", ":.shop:orders"),
        (":.:orders", ":.shop:", "orders"),
        (":orders", "", ":orders"),
        (":.shop", "", ":.shop"),
    ],
)
def test_a_subject_keeps_the_context_that_it_names(subject: str, prefix: str, whole: str) -> None:
    assert qualify(subject, prefix) == whole


def test_the_context_of_a_subject_is_read() -> None:
    names = ("orders", ":.shop:a:b", ":", ":.")
    assert [context_in(name) for name in names] == ["", ":.shop:", "", ""]


@pytest.mark.parametrize("context", ["", ":.shop:"])
@pytest.mark.parametrize("subject", ["orders", ":.shop:orders", ":.other:orders"])
def test_a_written_reference_names_the_same_subject(subject: str, context: str) -> None:
    assert qualify(written_in(subject, context), context) == subject
