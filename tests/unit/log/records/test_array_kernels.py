"""Kernels over arrays from an image: what they are given is what numba's would be given, and checked before."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest

from tidelog.log.records.array_kernels import INTEGER, Array, ArrayKernels, KernelGroup, Signature, compile_group
from tidelog.log.records.machine_code import ImageError


@numba.njit(nogil=True)
def _sums(numbers: Any, table: Any, shift: int, pair: Any) -> Any:
    total = np.int64(0)
    for index in range(numbers.size):
        total += np.int64(numbers[index])
    corner = np.int64(0)
    for row in range(table.shape[0]):
        corner += table[row, table.shape[1] - 1] * pair[0] + pair[1].size
    return total + shift, corner


@numba.njit(nogil=True)
def _fill(target: Any, value: int) -> None:
    target[:] = value


@numba.njit(nogil=True)
def _divide(number: int, divisor: int) -> int:
    return number // divisor


GROUP = KernelGroup(
    "test",
    "none",
    "none",
    (),
    {
        "sums": Signature((Array("uint8"), Array("int64", 2), INTEGER, (INTEGER, Array("uint64"))), 2),
        "fill": Signature((Array("int64"), INTEGER)),
        "divide": Signature((INTEGER, INTEGER), 1),
    },
)
KERNELS = {"sums": _sums, "fill": _fill, "divide": _divide}


@pytest.fixture(scope="module")
def kernels() -> ArrayKernels:
    return ArrayKernels(GROUP, compile_group(GROUP, KERNELS))


def test_arrays_integers_and_tuples_arrive(kernels: ArrayKernels) -> None:
    table = np.arange(6, dtype=np.int64).reshape(3, 2)
    words = np.zeros(5, np.uint64)
    expected = (6 - 10, (1 + 3 + 5) * 7 + 15)
    for numbers in (np.array([1, 2, 3], np.uint8), b"\1\2\3", bytearray(b"\1\2\3"), memoryview(b"0\1\2\3")[1:]):
        assert kernels.sums(numbers, table, -10, (7, words)) == expected
    assert kernels.sums(b"", table[:0], 0, (1, words[:0])) == (0, 0)


def test_a_kernel_writes_into_arrays_and_buffers(kernels: ArrayKernels) -> None:
    numbers = np.zeros(1000, np.int64)
    kernels.fill(numbers, 0)
    kernels.fill(numbers[2:5], 9)
    assert numbers.sum() == 27
    column = array("q", [1, 2, 3])
    kernels.fill(memoryview(column)[1:], -1)
    assert column.tolist() == [1, -1, -1]


@pytest.mark.parametrize(
    "target",
    [
        np.zeros(4, np.uint64),
        np.zeros((2, 2), np.int64),
        np.zeros(8, np.int64)[::2],
        bytearray(7),
        memoryview(bytearray(32))[::2],
    ],
)
def test_another_kind_of_array_is_refused(kernels: ArrayKernels, target: Any) -> None:
    with pytest.raises(TypeError, match="expected"):
        kernels.fill(target, 1)


def test_a_wrong_number_of_arguments_is_refused(kernels: ArrayKernels) -> None:
    with pytest.raises(TypeError, match="fill takes 2 arguments, not 1"):
        kernels.fill(np.zeros(1, np.int64))
    with pytest.raises(AttributeError, match="no kernel other"):
        kernels.other()


def test_what_numba_would_raise_is_an_error_here(kernels: ArrayKernels) -> None:
    assert kernels.divide(7, 2) == 3
    with pytest.raises(RuntimeError, match="divide failed"):
        kernels.divide(7, 0)


def test_a_kernel_that_returns_something_else_is_not_compiled() -> None:
    group = KernelGroup("test", "none", "none", (), {"divide": Signature((INTEGER, INTEGER), 2)})
    with pytest.raises(ImageError, match="kernel divide returns int64"):
        compile_group(group, vars(SimpleNamespace(**KERNELS)))
