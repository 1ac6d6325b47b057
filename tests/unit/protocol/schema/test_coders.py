"""The coders against the interpreting coder, for every message and version: generated Python, and the compiled walker.

The walker is tried as built, and uncompiled.
"""

from __future__ import annotations

import struct
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import interpreting_coder as oracle
from tests.support.depth import DEPTH
from tests.support.extensions import uncompiled
from tests.support.messages import DrawnChoices, RandomChoices, all_messages, all_versions, arbitrary, versions
from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.messages.fetch import EpochEndOffset, FetchableTopicResponse, FetchResponse, PartitionData
from tidelog.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from tidelog.protocol.schema import walker
from tidelog.protocol.schema.decoder import compile_decoder
from tidelog.protocol.schema.encoder import compile_encoder
from tidelog.protocol.schema.fields import Coder, EncodeError, Message
from tidelog.protocol.types import Part

MESSAGES = all_messages()
PARTS = 4
"""Number of tests over which the messages and versions are divided."""
PLAIN = uncompiled(walker)


def coders(cls: type[Message], version: int) -> list[tuple[Coder, Coder]]:
    """Return the decoder and the encoder of each kind."""
    walkers = [module.Walker(cls, version) for module in (walker, PLAIN)]
    generated = compile_decoder(cls, version), compile_encoder(cls, version)
    return [generated, *((each, each) for each in walkers)]


def join_parts(parts: list[Part]) -> bytes:
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("part", range(PARTS))
def test_every_message_of_every_version_encodes_as_the_oracle_does(part: int) -> None:
    for cls, version in all_versions()[part::PARTS]:
        encoders = [encoder for _, encoder in coders(cls, version)]
        for seed in range(4):
            message = arbitrary(cls, version, RandomChoices(seed))
            expected = oracle.encode(message, version)
            assert message.encode(version) == expected, (cls, version)
            for encoder in encoders:
                assert join_parts(encoder.encode(message)) == expected, (cls, version)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_message_of_every_version_is_decoded_to_itself(part: int) -> None:
    for cls, version in all_versions()[part::PARTS]:
        decoders = [decoder for decoder, _ in coders(cls, version)]
        for seed in range(4, 8):
            message = arbitrary(cls, version, RandomChoices(seed))
            encoded = memoryview(message.encode(version))
            assert cls.decode(encoded, version) == message, (cls, version)
            for decoder in decoders:
                assert decoder.decode(encoded, 0) == (message, len(encoded)), (cls, version)


@pytest.mark.parametrize("part", range(PARTS))
@settings(max_examples=152 * DEPTH // PARTS, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_all_coders_agree_on_arbitrary_values(data: st.DataObject, part: int) -> None:
    cls, version = _message_and_version(data)
    message = arbitrary(cls, version, DrawnChoices(lambda low, high: data.draw(st.integers(low, high))))
    encoded = oracle.encode(message, version)
    assert message.encode(version) == encoded
    assert b"".join(bytes(part) for part in message.encode_parts(version)) == encoded
    assert cls.decode(memoryview(encoded), version) == oracle.decode(cls, encoded, version) == message
    for decoder, encoder in coders(cls, version):
        assert join_parts(encoder.encode(message)) == encoded
        assert decoder.decode(memoryview(b"xy" + encoded), 2) == (message, len(encoded) + 2)
        for header, size in ((struct.pack(">i", 77), 4), (struct.pack(">ix", 77), 5)):
            expected = struct.pack(">i", len(header) + len(encoded)) + header + encoded
            assert join_parts(encoder.encode_frame(message, 77, size)) == expected


@pytest.mark.parametrize("part", range(PARTS))
@settings(max_examples=200 * DEPTH // PARTS, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_all_decoders_agree_with_the_oracle_on_damaged_bytes(data: st.DataObject, part: int) -> None:
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
    assert len({_outcome(decoder, bytes(damaged)) for decoder, _ in coders(cls, version)}) == 1


def _outcome(decoder: Coder, data: bytes) -> str:
    """Return the message and where it ends, or the error, as text."""
    try:
        return repr(decoder.decode(data, 0))
    except InvalidRequestError as error:
        return str(error)


@settings(max_examples=60 * DEPTH, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_all_decoders_bound_the_elements_alike(data: st.DataObject) -> None:
    cls, version = _message_and_version(data)
    encoded = oracle.encode(arbitrary(cls, version, RandomChoices(data.draw(st.integers(0, 1000)))), version)
    allowed = data.draw(st.integers(0, 6))

    def refuses(decoder: Coder) -> bool:
        try:
            decoder.decode(encoded, 0, allowed)
        except InvalidRequestError:
            return True
        return False

    assert len({refuses(decoder) for decoder, _ in coders(cls, version)}) == 1


@pytest.mark.parametrize("value", [1 << 31, -(1 << 31) - 1, 1 << 70, "1", None, 1.0])
def test_all_encoders_refuse_a_value_that_does_not_fit_its_field(value: object) -> None:
    answer = PartitionProduceResponse(index=cast(int, value))
    response = ProduceResponse(responses=[TopicProduceResponse(partition_responses=[answer])])
    for _, encoder in coders(ProduceResponse, 9):
        with pytest.raises(EncodeError, match=r"ProduceResponse v9: field .*index"):
            encoder.encode(response)


def test_a_default_that_was_put_in_by_hand_is_written_as_one() -> None:
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[PartitionData()])])
    plain = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[PartitionData()])])
    plain.responses[0].partitions[0].diverging_epoch = EpochEndOffset()
    for _, encoder in coders(FetchResponse, 12):
        assert join_parts(encoder.encode(plain)) == join_parts(encoder.encode(response))


def test_a_blank_object_has_its_own_defaults() -> None:
    for module in (walker, PLAIN):
        one, other = module.blank(PartitionProduceResponse), module.blank(PartitionProduceResponse)
        assert one == PartitionProduceResponse() == other
        one.record_errors.append(BatchIndexAndErrorMessage())
        assert other == PartitionProduceResponse()


def _message_and_version(data: st.DataObject) -> tuple[type[Message], int]:
    cls = data.draw(st.sampled_from(MESSAGES))
    return cls, data.draw(st.sampled_from(versions(cls.VERSIONS)))
