"""The compiled coders against the interpreting one, for every message and version."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import interpreting_coder as oracle
from tests.support.depth import DEPTH
from tests.support.messages import DrawnChoices, RandomChoices, all_messages, all_versions, arbitrary, versions
from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.schema.fields import Message

MESSAGES = all_messages()


def test_every_message_of_every_version_encodes_as_the_oracle_does() -> None:
    for cls, version in all_versions():
        for seed in range(4):
            message = arbitrary(cls, version, RandomChoices(seed))
            assert message.encode(version) == oracle.encode(message, version), (cls, version)


def test_every_message_of_every_version_decodes_to_what_was_encoded() -> None:
    for cls, version in all_versions():
        for seed in range(4, 8):
            message = arbitrary(cls, version, RandomChoices(seed))
            assert cls.decode(memoryview(message.encode(version)), version) == message, (cls, version)


@settings(max_examples=150 * DEPTH, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_compiled_and_interpreting_coders_agree_on_arbitrary_values(data: st.DataObject) -> None:
    cls, version = _message_and_version(data)
    message = arbitrary(cls, version, DrawnChoices(lambda low, high: data.draw(st.integers(low, high))))
    encoded = oracle.encode(message, version)
    assert message.encode(version) == encoded
    assert b"".join(bytes(part) for part in message.encode_parts(version)) == encoded
    assert cls.decode(memoryview(encoded), version) == oracle.decode(cls, encoded, version) == message


@settings(max_examples=300 * DEPTH, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_compiled_and_interpreting_decoders_agree_on_damaged_bytes(data: st.DataObject) -> None:
    cls, version = _message_and_version(data)
    message = arbitrary(cls, version, RandomChoices(data.draw(st.integers(0, 1000))))
    damaged = bytearray(oracle.encode(message, version))
    for _ in range(data.draw(st.integers(1, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    try:
        expected = oracle.decode(cls, bytes(damaged), version)
    except oracle.DecodeError:
        with pytest.raises(InvalidRequestError, match=f"{cls.__name__} v{version}"):
            cls.decode(memoryview(damaged), version)
    else:
        assert repr(cls.decode(bytes(damaged), version)) == repr(expected)  # repr: a damaged float may be NaN


def _message_and_version(data: st.DataObject) -> tuple[type[Message], int]:
    cls = data.draw(st.sampled_from(MESSAGES))
    return cls, data.draw(st.sampled_from(versions(cls.VERSIONS)))
