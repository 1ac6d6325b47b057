"""Images of compiled kernels: machine code that a child takes out of numba, run here through ctypes.

Importing numba to run two small functions costs a serving process 0.56 s of processor time under the interpreter
lock and 110 MB of memory. The functions themselves are some KB of code that calls only ``memcpy`` and the like.
So the child that compiles them also writes an *image*::

    child    numba kernel -> ELF object -> what its entry reaches, laid out in one piece -> image file
    here     image file -> pages of our own -> absolute addresses filled in -> made executable -> ctypes function

    image    magic 8 | entries 4 | relocations 4 | imports 8 | code size 8
             entry: name 32 | position 8    relocation: position 8 | target 8    import: position 8 | name 32    code

Invariants: an image holds only code that reaches nothing outside of it but the memory functions of the C library
(``IMPORTS``), so it cannot call into Python; pages are never writable and executable at once; a file that others may
write, or of another size than it says, is not loaded. Only x86-64 objects are understood (one kind of relocation);
elsewhere ``extract`` says so and numba itself serves.

Source of the formats: System V ABI, AMD64 supplement (ELF-64 object files); numba's calling convention
(``numba.core.callconv.CPUCallConv``): result pointer, error pointer, then the arguments, arrays field by field.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

MAGIC = b"TLKERN02"
_HEAD = struct.Struct("<8sIIQQ")
_ENTRY = struct.Struct("<32sQ")
_RELOCATION = struct.Struct("<QQ")
_IMPORT = struct.Struct("<Q32s")
MAX_IMAGE_BYTES = 1 << 20

_ELF_MACHINE, _X86_64 = 18, 62
_SECTION_TABLE, _SECTION_COUNTS = 40, 58
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_PROGBITS, _SYMTAB, _RELA_SECTION, _ALLOCATED = 1, 2, 4, 2
_ABSOLUTE_64 = 1
_ALIGNMENT = 64
_NEVER_CALLED = frozenset({"NRT_MemInfo_call_dtor"})
"""Frees an array's memory: the arrays of kernels own none, so the call behind the null check is never made."""
IMPORTS = frozenset({"memcpy", "memmove", "memset"})
"""What the compiler makes of loops over bytes; filled in from the C library of the process."""


class ImageError(Exception):
    """Machine code that cannot be taken out of its object, or an image file that is not to be trusted."""


class Image(NamedTuple):
    """Code and constants in one piece; each relocation is (position of eight bytes, what they point to), both from
    the start of the code; each import (position of eight bytes, function they point to)."""

    code: bytes
    relocations: tuple[tuple[int, int], ...]
    entries: dict[str, int]
    imports: tuple[tuple[int, str], ...] = ()


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int
    size: int


class _Object:
    """What of an ELF object file concerns us. Raises ImageError where it is of another machine."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, _ELF_MACHINE)[0] != _X86_64:
            raise ImageError("not an x86-64 object")
        (table,) = struct.unpack_from("<Q", data, _SECTION_TABLE)
        entry_size, count = struct.unpack_from("<HH", data, _SECTION_COUNTS)
        self.data = data
        self.sections = [_SECTION.unpack_from(data, table + slot * entry_size) for slot in range(count)]
        self.symbols = [
            symbol for section in self.sections if section[1] == _SYMTAB for symbol in self._symbols(section)
        ]
        self.relocations: dict[int, list[tuple[int, int, int, int]]] = {}
        for section in self.sections:
            if section[1] == _RELA_SECTION:
                self.relocations[section[7]] = [
                    (position, info & 0xFFFFFFFF, info >> 32, addend)
                    for position, info, addend in _RELA.iter_unpack(self.bytes_of(section))
                ]

    def bytes_of(self, section: tuple[int, ...]) -> bytes:
        """A section's content."""
        return self.data[section[4] : section[4] + section[5]]

    def _symbols(self, section: tuple[int, ...]) -> list[_Symbol]:
        names = self.bytes_of(self.sections[section[6]])
        return [
            _Symbol(names[name : names.index(b"\0", name)].decode(), index, value, size)
            for name, _, _, index, value, size in _SYMBOL.iter_unpack(self.bytes_of(section))
        ]

    def layout(self) -> tuple[bytes, dict[int, int]]:
        """All loaded sections one behind the other, and where each begins."""
        code = bytearray()
        starts: dict[int, int] = {}
        for slot, section in enumerate(self.sections):
            if section[1] == _PROGBITS and section[2] & _ALLOCATED:
                code += bytes(-len(code) % _ALIGNMENT)
                starts[slot] = len(code)
                code += self.bytes_of(section)
        return bytes(code), starts


def extract(object_code: bytes, entries: dict[str, str]) -> Image:
    """The image of an object file. ``entries`` names the functions wanted: our name to the object's symbol.

    Raises ImageError for another machine, or a function that reaches outside of the object.
    """
    parsed = _Object(object_code)
    code, starts = parsed.layout()
    by_name = {symbol.name: symbol for symbol in parsed.symbols if symbol.section in starts}
    found: dict[tuple[int, int], tuple[int, int]] = {}
    imports: dict[int, str] = {}
    waiting = [by_name[symbol] for symbol in entries.values() if symbol in by_name]
    if len(waiting) != len(entries):
        raise ImageError("a kernel is missing in its object")
    reached: set[_Symbol] = set()
    while waiting:
        symbol = waiting.pop()
        if symbol in reached:
            continue
        reached.add(symbol)
        for position, target, next_symbol in _references(parsed, symbol):
            if next_symbol.section in starts:
                found[symbol.section, position] = (
                    starts[symbol.section] + position,
                    starts[next_symbol.section] + target,
                )
                waiting.append(next_symbol)
            elif next_symbol.name in IMPORTS:
                imports[starts[symbol.section] + position] = next_symbol.name
            elif next_symbol.name not in _NEVER_CALLED:
                raise ImageError(f"a kernel calls {next_symbol.name}")
    places = {name: starts[by_name[symbol].section] + by_name[symbol].value for name, symbol in entries.items()}
    return Image(code, tuple(sorted(found.values())), places, tuple(sorted(imports.items())))


def _references(parsed: _Object, symbol: _Symbol) -> list[tuple[int, int, _Symbol]]:
    """(position, target, symbol) of every address inside ``symbol``, both from the start of their sections."""
    references = []
    end = symbol.value + (symbol.size or parsed.sections[symbol.section][5])
    for position, kind, index, addend in parsed.relocations.get(symbol.section, ()):
        if symbol.value <= position < end:
            if kind != _ABSOLUTE_64:
                raise ImageError(f"relocation of kind {kind}")
            target = parsed.symbols[index]
            references.append((position, target.value + addend, target))
    return references


def merge(images: list[Image]) -> Image:
    """Several images as one."""
    code = bytearray()
    relocations: list[tuple[int, int]] = []
    entries: dict[str, int] = {}
    imports: list[tuple[int, str]] = []
    for image in images:
        code += bytes(-len(code) % _ALIGNMENT)
        start = len(code)
        code += image.code
        relocations += [(start + position, start + target) for position, target in image.relocations]
        imports += [(start + position, name) for position, name in image.imports]
        entries.update((name, start + position) for name, position in image.entries.items())
    return Image(bytes(code), tuple(relocations), entries, tuple(imports))


def write_image(image: Image, path: Path) -> None:
    """Put the image in the place of ``path``, whole or not at all. Raises OSError."""
    parts = [_HEAD.pack(MAGIC, len(image.entries), len(image.relocations), len(image.imports), len(image.code))]
    parts += [_ENTRY.pack(name.encode(), position) for name, position in image.entries.items()]
    parts += [_RELOCATION.pack(*relocation) for relocation in image.relocations]
    parts += [_IMPORT.pack(position, name.encode()) for position, name in image.imports]
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(b"".join([*parts, image.code]))
    temporary.rename(path)


def read_image(path: Path) -> Image:
    """The image in a file. Raises ImageError when it is not to be trusted, OSError when it cannot be read."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid not in (0, os.getuid()) or status.st_mode & 0o022 or status.st_size > MAX_IMAGE_BYTES:
            raise ImageError(f"{path} may have been written by another user")
        data = file.read()
    try:
        return _parse(data)
    except (struct.error, ValueError):
        raise ImageError(f"{path} is damaged") from None


def _parse(data: bytes) -> Image:
    """Raises struct.error, ValueError."""
    magic, entry_count, relocation_count, import_count, size = _HEAD.unpack_from(data)
    relocations_at = _HEAD.size + entry_count * _ENTRY.size
    imports_at = relocations_at + relocation_count * _RELOCATION.size
    code_at = imports_at + import_count * _IMPORT.size
    if magic != MAGIC or len(data) != code_at + size:
        raise ValueError("not the size it says")
    entries = {_text(name): at for name, at in _ENTRY.iter_unpack(data[_HEAD.size : relocations_at])}
    relocations = tuple(_RELOCATION.iter_unpack(data[relocations_at:imports_at]))
    imports = tuple((place, _text(name)) for place, name in _IMPORT.iter_unpack(data[imports_at:code_at]))
    places = [place for place, _ in relocations] + [place for place, _ in imports]
    if any(place + 8 > size for place in places) or any(target > size for _, target in relocations):
        raise ValueError("an address outside of the code")
    if not IMPORTS.issuperset(name for _, name in imports):
        raise ValueError("an import that no kernel has")
    return Image(data[code_at:], relocations, entries, imports)


def _text(name: bytes) -> str:
    return name.rstrip(b"\0").decode()


class LoadedImage:
    """An image in executable pages, for as long as this object lives."""

    def __init__(self, image: Image) -> None:
        """Raises OSError where the system allows no executable pages of a process's own."""
        self._pages = mmap.mmap(-1, max(len(image.code), 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self._entries = image.entries
        self._pages[: len(image.code)] = image.code
        for position, target in image.relocations:
            struct.pack_into("<Q", self._pages, position, self._base + target)
        library = ctypes.CDLL(None, use_errno=True)
        for position, name in image.imports:
            address = ctypes.cast(library[name], ctypes.c_void_p).value or 0
            struct.pack_into("<Q", self._pages, position, address)
        protect = library.mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        if protect(self._base, len(self._pages), mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError(ctypes.get_errno(), "mprotect")

    def address(self, entry: str) -> int:
        """Where a function begins. Raises KeyError."""
        return self._base + self._entries[entry]
