"""Request and response headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.protocol.api_keys import FIRST_FLEXIBLE_VERSION
from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.header import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
)


@given(
    api_key=st.integers(0, len(FIRST_FLEXIBLE_VERSION) - 1),
    api_version=st.integers(0, 20),
    correlation_id=st.integers(-(1 << 31), (1 << 31) - 1),
    client_id=st.none() | st.text(st.characters(codec="utf-8"), max_size=50),
    body=st.binary(min_size=4, max_size=20),
)
def test_request_header_round_trip(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, body: bytes
) -> None:
    if (api_key, api_version) == (7, 0):
        client_id = None
    header = RequestHeader(api_key, api_version, correlation_id, client_id)
    encoded = encode_request_header(header)
    decoded, position = decode_request_header(memoryview(encoded + body))
    assert decoded == header
    assert position == len(encoded)


def test_controlled_shutdown_v0_has_no_client_id() -> None:
    header = RequestHeader(7, 0, 5, None)
    assert encode_request_header(header) == bytes.fromhex("0007 0000 00000005")
    assert decode_request_header(bytes.fromhex("0007 0000 00000005 00000001")) == (header, 8)


def test_client_id_that_is_not_utf_8_is_shown_as_far_as_it_can_be() -> None:
    header, _ = decode_request_header(bytes.fromhex("0000 0007 00000001 0003 6dfc72"))
    assert header.client_id == "m\N{REPLACEMENT CHARACTER}r"


def test_tagged_fields_of_v2_are_skipped() -> None:
    header, position = decode_request_header(bytes.fromhex("0012 0003 00000005 0001 61 01 00 02 aabb 99"))
    assert header == RequestHeader(18, 3, 5, "a")
    assert position == 16


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("", "no header"),
        ("0000 0007 0000", "no header"),
        ("0000 0007 00000001", "key 0 version 7"),
        ("0000 0007 00000001 fffe", "-2 bytes"),
        ("0000 0007 00000001 0005 6161", "longer than the request"),
        ("0000 0009 00000001 ffff", "ends early"),
        ("0000 0009 00000001 ffff ffffffffff", "varint"),
        ("005d 0000 00000001 ffff 00", "no API key 93"),
        ("ffff 0000 00000001 ffff 00", "below 0"),
        ("0000 ffff 00000001 ffff 00", "below 0"),
    ],
)
def test_malformed_header_is_an_invalid_request(data: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        decode_request_header(memoryview(bytes.fromhex(data)))


def test_header_compares_by_value() -> None:
    assert RequestHeader(1, 2, 3, "a") == RequestHeader(1, 2, 3, "a")
    assert RequestHeader(1, 2, 3, "a") != RequestHeader(1, 2, 3, "b")
    assert RequestHeader(1, 2, 3, "a") != "header"
    assert "client_id='a'" in repr(RequestHeader(1, 2, 3, "a"))


def test_a_response_header_is_decoded() -> None:
    assert decode_response_header(bytes.fromhex("00000007 aa"), 0) == (7, 4)
    assert decode_response_header(bytes.fromhex("00000007 00 aa"), 1) == (7, 5)
    with pytest.raises(InvalidRequestError, match="response header"):
        decode_response_header(b"\0\0", 0)
    with pytest.raises(InvalidRequestError, match="response header"):
        decode_response_header(bytes.fromhex("00000007"), 1)
