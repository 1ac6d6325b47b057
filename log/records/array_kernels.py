"""Kernels over arrays, run from an image of their machine code: the calls of a numba module without numba.

    child    ``compile_group``    each kernel of a group compiled for its signature, their code in one image
    here     ``ArrayKernels``     an attribute for each kernel: takes arrays, integers and tuples of them

numba passes an array field by field: owner, parent, items, item size, data, shape, strides; a tuple item by item. All
of it is integers of 64 bits for the processor, and so are the results. Nothing is checked in there, so every array is
checked here: type of its items, dimensions, contiguity. Instead of a numpy array of one dimension any buffer will do.

Kernels run without the interpreter lock; any thread.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tidelog.log.records.machine_code import Image, ImageError, LoadedImage, extract, merge

_ITEMS = {"uint8": ("|u1", 1), "uint32": ("<u4", 4), "int64": ("<i8", 8), "uint64": ("<u8", 8)}
"""How numpy writes the types of items, and their size. Of arrays of one or two dimensions."""
_OK = (0, -2)
"""What a kernel returns unless it raised (``numba.core.callconv``: RETCODE_OK, RETCODE_NONE)."""


@dataclass(frozen=True, slots=True)
class Array:
    """An argument that is a C-contiguous array of ``items``."""

    items: str
    dimensions: int = 1


INTEGER = "int64"
Argument = Array | str | tuple[Any, ...]
"""An array, INTEGER, or a tuple of such."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a kernel takes and how many integers it returns."""

    arguments: tuple[Argument, ...]
    results: int = 0


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """Kernels that are compiled and loaded together.

    ``module`` writes the image when a child imports it; ``fallback`` is numba's module for processors without images.
    ``sources``: the files that decide what the code is, beside those of the image's format.
    """

    name: str
    module: str
    fallback: str
    sources: tuple[Path, ...]
    signatures: Mapping[str, Signature]


class ArrayKernels:
    """The kernels of a group as attributes."""

    def __init__(self, group: KernelGroup, image: Image) -> None:
        """Raises OSError where code may not be loaded, KeyError for a kernel that the image lacks."""
        self._image = LoadedImage(image)
        for name, signature in group.signatures.items():
            setattr(self, name, _caller(name, self._image.address(name), signature))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Only for what is no kernel. Raises AttributeError."""
        raise AttributeError(f"no kernel {name}")


def _caller(name: str, address: int, signature: Signature) -> Callable[..., Any]:
    """A function that takes what numba's takes."""
    width = sum(_width(argument) for argument in signature.arguments)
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * width)
    function = prototype(address)
    flatteners = [_flattener(argument) for argument in signature.arguments]
    result_type = ctypes.c_int64 * max(signature.results, 1)

    def call(*values: Any) -> Any:
        if len(values) != len(flatteners):
            raise TypeError(f"{name} takes {len(flatteners)} arguments, not {len(values)}")
        flat: list[int] = []
        kept: list[Any] = []  # ctypes objects through which a buffer stays where it is
        for flatten, value in zip(flatteners, values, strict=True):
            flatten(value, flat, kept)
        result, error = result_type(), ctypes.c_void_p()
        status = function(result, ctypes.byref(error), *flat)
        if status not in _OK:
            raise RuntimeError(f"kernel {name} failed with status {status}")
        if signature.results == 1:
            return result[0]
        return tuple(result) if signature.results else None

    return call


def _width(argument: Argument) -> int:
    if isinstance(argument, Array):
        return 5 + 2 * argument.dimensions
    return 1 if isinstance(argument, str) else sum(_width(part) for part in argument)


_Flattener = Callable[[Any, list[int], list[Any]], None]
"""Adds the integers that a value is passed as to a list, and what must live as long as the call to another."""


def _flattener(argument: Argument) -> _Flattener:
    if isinstance(argument, Array):
        return _array_flattener(argument)
    if isinstance(argument, str):
        return _flatten_integer
    parts = [_flattener(part) for part in argument]

    def flatten_tuple(value: Any, flat: list[int], kept: list[Any]) -> None:
        for flatten, item in zip(parts, value, strict=True):
            flatten(item, flat, kept)

    return flatten_tuple


def _flatten_integer(value: Any, flat: list[int], _kept: list[Any]) -> None:
    flat.append(int(value))


def _array_flattener(argument: Array) -> _Flattener:
    items, size = _ITEMS[argument.items]

    def flatten_array(value: Any, flat: list[int], kept: list[Any]) -> None:
        # One look at an array for all there is to check: a chunk of 1 MB takes ten calls with five arrays each.
        facts = getattr(value, "__array_interface__", None)
        if facts is None:
            _flatten_buffer(argument, value, flat, kept)
            return
        shape = facts["shape"]
        if facts["typestr"] != items or len(shape) != argument.dimensions or facts["strides"] is not None:
            raise TypeError(
                f"an array of {value.dtype} in {len(shape)} dimensions, expected contiguous {argument.items} "
                f"in {argument.dimensions}"
            )
        if len(shape) == 1:
            flat += (0, 0, shape[0], size, facts["data"][0], shape[0], size)
        else:
            flat += (0, 0, shape[0] * shape[1], size, facts["data"][0], *shape, shape[1] * size, size)

    return flatten_array


def _flatten_buffer(argument: Array, buffer: Any, flat: list[int], kept: list[Any]) -> None:
    _, size = _ITEMS[argument.items]
    view = memoryview(buffer)
    if argument.dimensions != 1 or not view.c_contiguous or view.nbytes % size:
        raise TypeError(f"a buffer of {view.nbytes} bytes, expected {argument.items} in one dimension")
    if not view.nbytes:
        address = 0
    elif isinstance(buffer, bytes):
        address = ctypes.cast(ctypes.c_char_p(buffer), ctypes.c_void_p).value or 0
    elif view.readonly:
        copied = ctypes.create_string_buffer(view.tobytes(), view.nbytes)
        kept.append(copied)
        address = ctypes.addressof(copied)
    else:
        first = ctypes.c_char.from_buffer(view)
        kept.append(first)
        address = ctypes.addressof(first)
    count = view.nbytes // size
    flat += (0, 0, count, size, address, count, size)


# ---- with numba


def numba_callers(group: KernelGroup, kernels: Mapping[str, Any]) -> SimpleNamespace:
    """Numba's ``kernels`` called as :class:`ArrayKernels` are: any buffer will do for an array of one dimension."""

    def caller(kernel: Any, arguments: tuple[Argument, ...]) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            return kernel(*map(_as_numpy, arguments, values))

        return call

    return SimpleNamespace(
        **{name: caller(kernels[name], signature.arguments) for name, signature in group.signatures.items()}
    )


def _as_numpy(argument: Argument, value: Any) -> Any:
    if not isinstance(argument, Array) or hasattr(value, "__array_interface__"):
        return value
    import numpy as np

    return np.frombuffer(value, argument.items) if memoryview(value).nbytes else np.zeros(0, argument.items)


# ---- in the child


def compile_group(group: KernelGroup, kernels: Mapping[str, Any]) -> Image:
    """Compile numba's ``kernels`` for the group's signatures and take their code. Raises ImageError, ImportError."""
    from numba import njit

    images = []
    for name, signature in group.signatures.items():
        # Once more: what comes from numba's cache does not show its object code.
        types = tuple(_numba_type(argument) for argument in signature.arguments)
        again = njit(types, nogil=True, boundscheck=False)(kernels[name].py_func)
        compiled: Any = next(iter(again.overloads.values()))
        if compiled.signature.return_type != _result_type(signature.results):
            raise ImageError(f"kernel {name} returns {compiled.signature.return_type}")
        object_code = compiled.library._get_compiled_object()  # numba has no public way to it
        images.append(extract(object_code, {name: compiled.fndesc.llvm_func_name}))
    return merge(images)


def _numba_type(argument: Argument) -> Any:
    types: Any = importlib.import_module("numba.types")
    if isinstance(argument, Array):
        return types.Array(getattr(types, argument.items), argument.dimensions, "C")
    if isinstance(argument, str):
        return types.int64
    return types.Tuple([_numba_type(part) for part in argument])


def _result_type(results: int) -> Any:
    types: Any = importlib.import_module("numba.types")
    if results <= 1:
        return types.int64 if results else types.none
    return types.UniTuple(types.int64, results)
