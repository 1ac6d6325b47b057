"""Machine words of 16, 32 and 64 bits: ``words.h`` in C reads and writes them as ``words.py`` does."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.requirements import missing
from tidelog.protocol.compiled import words

HEADERS = Path(words.__file__).parent
WORDS = {"u16": ctypes.c_uint16, "u32": ctypes.c_uint32, "u64": ctypes.c_uint64}
NAMES = [f"{order}{word}" for order in ("", "be_") for word in WORDS]
CALLS = """
#include "words.h"
uint32_t checksum(const uint8_t *data, int64_t at, int64_t size) { return crc32c(data, at, size); }
#define CALLS(name, type) \\
    type get_##name(const uint8_t *data, int64_t at) { return load_##name(data, at); } \\
    void put_##name(uint8_t *data, int64_t at, type word) { store_##name(data, at, word); }
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.PyDLL:
    """The header as a library."""
    compiler = shutil.which("gcc")
    if compiler is None:
        missing("gcc", "apt-get install gcc")
    source = tmp_path_factory.mktemp("words") / "words.c"
    calls = [f"CALLS({name}, uint{name[-2:]}_t)" for name in NAMES]
    source.write_text(CALLS + "\n".join(calls))
    includes = [f"-I{HEADERS}", f"-I{sysconfig.get_paths()['include']}"]
    library = source.with_suffix(".so")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", *includes, str(source), "-o", str(library)], check=True)
    return ctypes.PyDLL(str(library))


def function(compiled: ctypes.PyDLL, name: str, result: Any, *arguments: Any) -> Callable[..., int]:
    call = compiled[name]
    call.restype, call.argtypes = result, (ctypes.c_char_p, ctypes.c_int64, *arguments)
    return call


@pytest.mark.parametrize("name", NAMES)
@given(data=st.binary(min_size=8, max_size=24), at=st.integers(0, 16), word=st.integers(0, words.MASK_64))
def test_words_are_loaded_and_stored_at_any_address(
    compiled: ctypes.PyDLL, name: str, data: bytes, at: int, word: int
) -> None:
    type_ = WORDS[name[-3:]]
    at = min(at, len(data) - 8)
    loaded = function(compiled, f"get_{name}", type_)(data, at)
    assert loaded == getattr(words, f"load_{name}")(data, at)
    in_python, in_c = bytearray(data), ctypes.create_string_buffer(data, len(data))
    getattr(words, f"store_{name}")(in_python, at, word)
    function(compiled, f"put_{name}", None, type_)(ctypes.cast(in_c, ctypes.c_char_p), at, word)
    assert bytes(in_python) == in_c.raw


@given(data=st.binary(max_size=64), times=st.integers(1, 60), at=st.integers(0, 9))
def test_checksums_are_those_of_the_reference(compiled: ctypes.PyDLL, data: bytes, times: int, at: int) -> None:
    """Sizes below and above three lanes, at any address."""
    data *= times
    size = max(0, len(data) - at)
    at = min(at, len(data))
    checksum = function(compiled, "checksum", ctypes.c_uint32, ctypes.c_int64)
    assert checksum(data, at, size) == words.crc32c(data, at, size)


def test_overlapping_bytes_are_copied_and_masks_have_their_values() -> None:
    buffer = bytearray(b"abcdef")
    words.copy_bytes(buffer, 2, buffer, 0, 4)
    assert buffer == b"ababcd"
    assert (words.MASK_32, words.MASK_64) == (2**32 - 1, 2**64 - 1)
    assert (words.MIN_INT_64, words.MAX_INT_64) == (-(2**63), 2**63 - 1)


def test_a_held_buffer_is_seen_as_bytes_and_as_integers() -> None:
    array = np.array([[1, -1], [2, 3]], np.int64)
    held = words.hold_writable(array)
    assert (held.size, list(held.integers), held.words[1]) == (32, [1, -1, 2, 3], words.MASK_64)
    held.integers[0] = 7
    held.bytes[8] = 0
    assert array[0].tolist() == [7, -256]
    assert words.hold(np.zeros((0, 2))).size == 0
    with pytest.raises(BufferError):
        words.hold_writable(b"text")
    with pytest.raises(TypeError):
        words.hold(array.T)
