"""The two mappings of the error table; the table is checked against Kafka in tests/contract."""

from __future__ import annotations

import pytest

from tidelog.protocol import errors


class _FullDiskError(errors.KafkaStorageError):
    """A subclass without a code of its own."""


def test_an_error_class_is_found_by_its_code() -> None:
    assert errors.error_for_code(1) is errors.OffsetOutOfRangeError
    assert errors.error_for_code(-1) is errors.UnknownServerError


def test_unknown_code_is_an_unknown_server_error() -> None:
    assert errors.error_for_code(9999) is errors.UnknownServerError


def test_success_is_no_error() -> None:
    with pytest.raises(ValueError, match="success"):
        errors.error_for_code(errors.NONE)


def test_subclass_shares_code_and_retriable() -> None:
    assert (_FullDiskError.code, _FullDiskError.retriable) == (56, True)


def test_message_is_the_raisers_or_the_tables() -> None:
    assert errors.KafkaStorageError("disk 3").message == "disk 3"
    assert errors.KafkaStorageError("").message == ""
    assert errors.KafkaStorageError().message == "The log could not be read or written on disk."


def test_second_class_for_a_code_is_refused() -> None:
    with pytest.raises(TypeError, match="OffsetOutOfRangeError"):
        type("Second", (errors.KafkaError,), {}, code=1)


def test_every_error_code_has_a_message() -> None:
    for code in [-1, *range(1, 134)]:
        assert errors.error_for_code(code)().message.endswith(".")
