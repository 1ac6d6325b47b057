"""``tidelog.log.records.kernels`` through ctypes, from an image of their machine code: the same calls without numba or
numpy.

    child    ``import tidelog.log.records.kernel_image``        compiles, writes the image into the cache's directory
    here     ``NativeKernels(read_image(path))``        4 ms and 1 MB, where importing numba takes 0.56 s and 110 MB

An image is good for the source it was made from, on the processor it was made on: both are in its file's name.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import zlib
from pathlib import Path
from typing import Any

from tidelog.log.records.machine_code import Image, LoadedImage, extract, merge

KERNELS = {"check_section": 5, "first_at_or_after": 3}
"""The kernels of ``tidelog.log.records.kernels`` and how many integers each returns."""
_HERE = Path(__file__).resolve().parent
_SOURCES = (_HERE / "kernels.py",)
_FORMAT_SOURCES = tuple(_HERE / name for name in ("machine_code.py", "native_kernels.py", "array_kernels.py"))
_ARRAY = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_ssize_t,
          ctypes.c_ssize_t)  # fmt: skip
"""An array as numba passes it: owner, parent, items, item size, data, shape, strides."""
_byref, _first_byte = ctypes.byref, ctypes.c_char.from_buffer


class NativeKernels:
    """The kernels as functions over bytes. Any thread; they run without the interpreter lock."""

    __slots__ = ("_at_or_after", "_check", "_five", "_image", "_no_error", "_three")

    def __init__(self, image: Image) -> None:
        """Raises OSError, KeyError."""
        self._image = LoadedImage(image)
        integer = ctypes.c_int64
        head = (ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *_ARRAY)
        self._check = ctypes.CFUNCTYPE(*head, integer)(self._image.address("check_section"))
        self._at_or_after = ctypes.CFUNCTYPE(*head, integer, integer, integer)(self._image.address("first_at_or_after"))
        self._five, self._three = integer * 5, integer * 3
        self._no_error = (ctypes.c_void_p * 1)()

    def check_section(self, section: Any, count: int) -> Any:
        """See :func:`tidelog.log.records.kernels.check_section`."""
        result, size = self._five(), len(section)
        self._check(result, self._no_error, None, None, size, 1, _address(section), size, 1, count)
        return result[:]  # a list is unpacked in a fifth of the time

    def first_at_or_after(self, section: Any, count: int, timestamp_delta: int, min_offset_delta: int) -> Any:
        """See :func:`tidelog.log.records.kernels.first_at_or_after`."""
        result, size = self._three(), len(section)
        self._at_or_after(result, self._no_error, None, None, size, 1, _address(section), size, 1, count,
                          timestamp_delta, min_offset_delta)  # fmt: skip
        return result[:]


def _address(section: Any) -> Any:
    """What ctypes passes as the pointer to a section's first byte; keeps the section alive while it is held."""
    if section.__class__ is bytes:
        return section
    try:
        return _byref(_first_byte(section))
    except (TypeError, ValueError):  # a read-only view, an empty one
        return bytes(section)


def image_name(group: str = "kernels", sources: tuple[Path, ...] = ()) -> str:
    """The file name of an image made from today's source, by the installed numba, for this processor.

    ``sources``: those of another group of kernels than ``tidelog.log.records.kernels``.
    """
    versions = [Path(spec.origin).with_name("_version.py") for name in ("numba", "llvmlite")
                if (spec := importlib.util.find_spec(name)) is not None and spec.origin]  # fmt: skip
    paths = [*_FORMAT_SOURCES, *(sources or _SOURCES), *versions]
    identity = b"".join([path.read_bytes() for path in paths if path.exists()] + [_processor()])
    return f"{group}-{len(identity)}-{zlib.crc32(identity):08x}{zlib.adler32(identity):08x}.image"


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return os.uname().machine.encode()
    return b"".join(line for line in dict.fromkeys(lines) if line.startswith((b"model name", b"flags")))


def compile_image() -> Image:
    """Compile the kernels and take their code. Raises ImageError, ImportError."""
    from numba import njit

    from tidelog.log.records import kernels

    images = []
    for name in KERNELS:
        kernel = getattr(kernels, name)
        # Once more: what comes from numba's cache does not show its object code.
        again = njit(kernel.signatures[0], nogil=True)(kernel.py_func)
        compiled = next(iter(again.overloads.values()))
        object_code = compiled.library._get_compiled_object()  # numba has no public way to it
        images.append(extract(object_code, {name: compiled.fndesc.llvm_func_name}))
    return merge(images)
