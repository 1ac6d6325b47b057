"""Declarations of messages, structs and fields: each message once, for all its versions.

    class Partition(Struct):
        index: int = int32()
        records: memoryview | None = record_batches(nullable="0+")

    class ProduceRequest(Message, api_key=0, versions="0-13", flexible="9+"):
        transactional_id: str | None = string("3+", nullable="3+", default=None)
        partitions: list[Partition] = array(Partition)

A field names the versions it exists in ("0+", "3-5", "7"), those it may be null in, its default, and its tag if it is a
tagged field (KIP-482). Annotations are for the type checker; at run time only the calls on the right matter. Classes
are slotted and take keywords; a field that is left out, or that a version does not have, has its default.

The coder of a message at a version is made when it is first used (:mod:`tidelog.protocol.schema.engine`). It walks the
fields in compiled routines; or it is Python source, generated without branches on versions
(:mod:`tidelog.protocol.schema.decoder`, :mod:`tidelog.protocol.schema.encoder`), which :func:`source_of` shows. At
import no code is generated, not even constructors, so unused APIs cost next to nothing at the start.

Invariants: a decoder reads only inside its view, checks lengths before it allocates, and raises nothing but
InvalidRequestError. Encoders raise EncodeError: a programming error, unless it is MessageTooLongError. Source:
Kafka's clients/…/common/message/README.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    dataclass_transform,
    overload,
)

from tidelog.protocol.errors import InvalidRequestError, UnsupportedVersionError
from tidelog.protocol.types import INT16, MAX_ELEMENTS, ZERO_UUID, Buffer, Part

if TYPE_CHECKING:
    from tidelog.protocol.schema.source import CompiledCoder

T = TypeVar("T")

MAX_VERSION = 0x7FFF


class EncodeError(ValueError):
    """A value that its declaration does not allow: a mistake of the caller."""


class MessageTooLongError(EncodeError):
    """A message that is longer than the caller allows."""


class VersionRange(NamedTuple):
    """Versions from ``lowest`` to ``highest``, both included; empty when highest < lowest."""

    lowest: int
    highest: int

    def has(self, version: int) -> bool:
        return self.lowest <= version <= self.highest

    def __str__(self) -> str:
        if self.highest < self.lowest:
            return "none"
        if self.highest == MAX_VERSION:
            return f"{self.lowest}+"
        return str(self.lowest) if self.lowest == self.highest else f"{self.lowest}-{self.highest}"


NO_VERSIONS = VersionRange(0, -1)
_ranges: dict[str, VersionRange] = {"none": NO_VERSIONS, "0+": VersionRange(0, MAX_VERSION)}


def version_range(text: str) -> VersionRange:
    """Parse the range written as "3+", "3-5", "3" or "none"."""
    known = _ranges.get(text)
    if known is None:
        lowest, dash, highest = text.partition("-")
        if text.endswith("+"):
            known = VersionRange(int(text[:-1]), MAX_VERSION)
        else:
            known = VersionRange(int(lowest), int(highest if dash else lowest))
        _ranges[text] = known
    return known


class Field:
    """One declared field: ``kind`` is Kafka's type name; "array" and "struct" have an ``item``."""

    __slots__ = ("default", "item", "kind", "name", "nullable", "tag", "versions")

    def __init__(self, kind: str, versions: str, nullable: str, default: Any, tag: int | None) -> None:
        self.name = ""
        self.kind = kind
        self.item: Field | type[Struct] | None = None
        self.versions = version_range(versions)
        self.nullable = version_range(nullable)
        self.default = default
        self.tag = tag

    def __repr__(self) -> str:
        return f"Field({self.name}: {self.kind} {self.versions})"


def int8(versions: str = "0+", *, default: int = 0, tag: int | None = None) -> int:
    return Field("int8", versions, "none", default, tag)  # type: ignore[return-value]


def int16(versions: str = "0+", *, default: int = 0, tag: int | None = None) -> int:
    return Field("int16", versions, "none", default, tag)  # type: ignore[return-value]


def uint16(versions: str = "0+", *, default: int = 0, tag: int | None = None) -> int:
    return Field("uint16", versions, "none", default, tag)  # type: ignore[return-value]


def int32(versions: str = "0+", *, default: int = 0, tag: int | None = None) -> int:
    return Field("int32", versions, "none", default, tag)  # type: ignore[return-value]


def uint32(versions: str = "0+", *, default: int = 0, tag: int | None = None) -> int:
    return Field("uint32", versions, "none", default, tag)  # type: ignore[return-value]


def int64(versions: str = "0+", *, default: int = 0, tag: int | None = None) -> int:
    return Field("int64", versions, "none", default, tag)  # type: ignore[return-value]


def float64(versions: str = "0+", *, default: float = 0.0, tag: int | None = None) -> float:
    return Field("float64", versions, "none", default, tag)  # type: ignore[return-value]


def boolean(versions: str = "0+", *, default: bool = False, tag: int | None = None) -> bool:
    return Field("bool", versions, "none", default, tag)  # type: ignore[return-value]


def uuid(versions: str = "0+", *, default: bytes = ZERO_UUID, tag: int | None = None) -> bytes:
    return Field("uuid", versions, "none", default, tag)  # type: ignore[return-value]


@overload
def string(versions: str = "0+", *, default: str = "", tag: int | None = None) -> str: ...
@overload
def string(versions: str = "0+", *, nullable: str, default: str | None = "", tag: int | None = None) -> str | None: ...
def string(
    versions: str = "0+", *, nullable: str = "none", default: str | None = "", tag: int | None = None
) -> str | None:
    return Field("string", versions, nullable, default, tag)  # type: ignore[return-value]


def binary(versions: str = "0+", *, nullable: str = "none", default: bytes | None = b"", tag: int | None = None) -> Any:
    """Declare a field of Kafka's "bytes". Decodes to a slice of the buffer: a copy if the buffer is ``bytes`` or a
    bytearray, none if it is a memoryview. Encodes from any buffer.
    """
    return Field("bytes", versions, nullable, default, tag)


def record_batches(versions: str = "0+", *, nullable: str = "none") -> Any:
    """Declare a field of record batches. Decodes like :func:`binary`; encodes from a buffer, a TransferableRecords, or
    a list of both.

    The default is null if that is allowed, else no bytes.
    """
    return Field("records", versions, nullable, b"" if nullable == "none" else None, None)


@overload
def array(
    item: Callable[..., T], versions: str = "0+", *, default: tuple[()] = (), tag: int | None = None
) -> list[T]: ...
@overload
def array(
    item: Callable[..., T],
    versions: str = "0+",
    *,
    nullable: str,
    default: tuple[()] | None = (),
    tag: int | None = None,
) -> list[T] | None: ...
def array(
    item: Callable[..., T],
    versions: str = "0+",
    *,
    nullable: str = "none",
    default: tuple[()] | None = (),
    tag: int | None = None,
) -> list[T] | None:
    """Declare an array of structs (``item`` is a Struct class) or of a primitive type (``item`` is ``int32``,
    ``string``…).
    """
    field = Field("array", versions, nullable, default, tag)
    field.item = item if isinstance(item, StructMeta) else item()  # type: ignore[assignment]
    return field  # type: ignore[return-value]


def struct_of(item: Callable[..., T], versions: str = "0+", *, tag: int | None = None) -> T:
    """Declare one nested struct. Its default is one shared instance whose fields cannot be set: assign a new one."""
    field = Field("struct", versions, "none", (), tag)
    field.item = item  # type: ignore[assignment]
    return field  # type: ignore[return-value]


def nullable_struct(item: Callable[..., T], versions: str = "0+", *, nullable: str, tag: int | None = None) -> T | None:
    """Declare one nested struct that may be null; null is the default."""
    field = Field("struct", versions, nullable, None, tag)
    field.item = item  # type: ignore[assignment]
    return field  # type: ignore[return-value]


@dataclass_transform(kw_only_default=True)
class StructMeta(type):
    """Metaclass that collects the fields of a declaration and turns them into slots."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> StructMeta:
        fields = []
        for key, value in namespace.items():
            if type(value) is Field:
                value.name = key
                fields.append(value)
        for field in fields:
            del namespace[field.name]
        namespace["__slots__"] = tuple(field.name for field in fields)
        namespace["FIELDS"] = tuple(fields)
        return super().__new__(mcs, name, bases, namespace, **options)


class Struct(metaclass=StructMeta):
    """A group of fields; the base of all declarations. Mutable, compared by value, not hashable."""

    FIELDS: ClassVar[tuple[Field, ...]]

    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            # First use of the class: put its own constructor in place of this one.
            from tidelog.protocol.schema.source import compile_constructor

            cls = type(self)
            cls.__init__ = compile_constructor(cls)
            cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct) or self.FIELDS is not other.FIELDS:
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self._items())
        return f"{type(self).__name__}({values})"

    def _items(self) -> Iterator[tuple[str, Any]]:
        return ((field.name, getattr(self, field.name)) for field in self.FIELDS)


class Message(Struct):
    """A request, a response or a record schema: a struct with versions, which is encoded by itself."""

    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[VersionRange] = NO_VERSIONS
    FLEXIBLE: ClassVar[VersionRange] = NO_VERSIONS
    _decoders: ClassVar[dict[int, Coder]]
    _encoders: ClassVar[dict[int, Coder]]

    def __init_subclass__(cls, *, versions: str = "none", flexible: str = "none", api_key: int = -1) -> None:
        cls.API_KEY = api_key
        cls.VERSIONS = version_range(versions)
        cls.FLEXIBLE = version_range(flexible)
        cls._decoders = {}
        cls._encoders = {}

    @classmethod
    def decode(cls, view: Buffer, version: int) -> Self:
        """Decode the message that fills ``view``. Its binary fields are slices of ``view``: no copies if that is a
        memoryview.

        Raises InvalidRequestError (malformed, or bytes left over), UnsupportedVersionError.
        """
        message, position = cls.decoder_at(version).decode(view, 0)
        if position != len(view):
            raise InvalidRequestError(
                f"{cls.__name__} v{version}: {len(view) - position} bytes left over at {position}"
            )
        return message  # type: ignore[no-any-return]

    @classmethod
    def decode_from(cls, view: Buffer, position: int, version: int, elements: int = MAX_ELEMENTS) -> tuple[Self, int]:
        """Decode the message at ``position``; return it and the position after it. Raises like :meth:`decode`.

        ``elements`` bounds the elements of all its arrays together.
        """
        return cls.decoder_at(version).decode(view, position, elements)

    @classmethod
    def decode_in_steps(
        cls, view: Buffer, position: int, version: int, elements: int = MAX_ELEMENTS
    ) -> Generator[None, None, tuple[Self, int]]:
        """Decode a long message like :meth:`decode_from`, with a yield for every 64 elements of an array other than of
        numbers."""
        coder = _coder_in_steps(cls, version, "decode")
        return (yield from coder.decode_in_steps(view, position, elements))

    @classmethod
    def decode_prefixed(cls, view: Buffer) -> Self:
        """Decode the record value that fills ``view``, after the int16 that names its version.

        Raises InvalidRequestError (malformed), UnsupportedVersionError (a version that is not declared).
        """
        version, message, position = cls._after_prefix(view)
        if position != len(view):
            raise InvalidRequestError(
                f"{cls.__name__} v{version}: {len(view) - position} bytes left over at {position}"
            )
        return message

    @classmethod
    def _after_prefix(cls, view: Buffer, newest: int = MAX_VERSION) -> tuple[int, Self, int]:
        if len(view) < 2:
            raise InvalidRequestError(f"{cls.__name__}: {len(view)} bytes hold no version")
        version: int = INT16.unpack_from(view)[0]
        message, position = cls.decode_from(view, 2, min(version, newest))
        return version, message, position

    @classmethod
    def decode_prefixed_lenient(cls, view: Buffer) -> Self:
        """Decode like :meth:`decode_prefixed`, but a newer version is read as the newest known one, and bytes
        that follow are ignored.

        So consumers of different releases share a group: each reads the fields of a subscription that it knows.
        """
        return cls._after_prefix(view, cls.VERSIONS.highest)[1]

    def encode(self, version: int) -> bytes:
        """Encode the message as bytes. Raises EncodeError, UnsupportedVersionError."""
        parts = self.encoder_at(version).encode(self)
        try:
            return b"".join(parts)  # type: ignore[arg-type]
        except TypeError as error:
            raise EncodeError(f"{type(self).__name__} v{version} holds records that are not in memory") from error

    def encode_prefixed(self, version: int) -> bytes:
        """Encode the version as an int16, then the message: the form of a coordinator's record values and of the
        consumer protocol."""
        return INT16.pack(version) + self.encode(version)

    def encode_parts(self, version: int) -> list[Part]:
        """Encode the message as pieces to send in order; slices of files are not read, large buffers of records
        not copied."""
        return self.encoder_at(version).encode(self)

    @classmethod
    def decoder_at(cls, version: int) -> Coder:
        """Return the decoder of a version. Raises UnsupportedVersionError."""
        return cls._decoders.get(version) or _decoder(cls, version)

    @classmethod
    def encoder_at(cls, version: int) -> Coder:
        """Return the encoder of a version. Raises UnsupportedVersionError."""
        return cls._encoders.get(version) or _encoder(cls, version)

    def encode_in_steps(self, version: int, max_bytes: int = sys.maxsize) -> Generator[None, None, list[Part]]:
        """Encode a long message like :meth:`encode_parts`, with a yield for every 64 elements of an array other than of
        numbers.

        Raises EncodeError, UnsupportedVersionError; MessageTooLongError if more than ``max_bytes`` are encoded, without
        records. That is checked before records, and at each yield for an array outside tagged fields.
        """
        coder = _coder_in_steps(type(self), version, "encode")
        return (yield from coder.encode_in_steps(self, max_bytes))


class Coder(Protocol):
    """Decoder and encoder of a message at one version."""

    def decode(self, view: Buffer, position: int, elements: int = MAX_ELEMENTS) -> tuple[Any, int]:
        """Decode the message at ``position``; return it and the position after it. Raises InvalidRequestError."""
        ...

    def encode(self, message: Any) -> list[Part]:
        """Encode the message as parts. Raises EncodeError."""
        ...

    def encode_frame(self, message: Any, correlation_id: int, header_bytes: int) -> list[Part]:
        """Encode the message as parts after its length and its response header. ``header_bytes`` is 4, or 5 with an
        empty section of tagged fields. Raises EncodeError.
        """
        ...


def _decoder(cls: type[Message], version: int) -> Coder:
    _check_version(cls, version)
    from tidelog.protocol.schema.engine import decoder_of

    coder = cls._decoders[version] = decoder_of(cls, version)
    return coder


def _encoder(cls: type[Message], version: int) -> Coder:
    _check_version(cls, version)
    from tidelog.protocol.schema.engine import encoder_of

    coder = cls._encoders[version] = encoder_of(cls, version)
    return coder


_in_steps: dict[tuple[type[Message], int, str], CompiledCoder] = {}


def _coder_in_steps(cls: type[Message], version: int, direction: Literal["decode", "encode"]) -> CompiledCoder:
    """Return the decoder or encoder that is a generator. With compiled modules, too, it is Python source, generated
    when the first long message comes."""
    coder = _in_steps.get((cls, version, direction))
    if coder is None:
        _check_version(cls, version)
        from tidelog.protocol.schema.decoder import compile_decoder
        from tidelog.protocol.schema.encoder import compile_encoder

        compile_coder = compile_decoder if direction == "decode" else compile_encoder
        coder = _in_steps[cls, version, direction] = compile_coder(cls, version, in_steps=True)
    return coder


def _check_version(cls: type[Message], version: int) -> None:
    if not cls.VERSIONS.has(version):
        raise UnsupportedVersionError(f"{cls.__name__} has versions {cls.VERSIONS}, not {version}")


def source_of(cls: type[Message], version: int, direction: Literal["decode", "encode"]) -> str:
    """Return the Python source that decodes or encodes ``cls`` at ``version``, for a person to read.
    Raises UnsupportedVersionError.
    """
    _check_version(cls, version)
    from tidelog.protocol.schema.decoder import compile_decoder
    from tidelog.protocol.schema.encoder import compile_encoder

    return (compile_decoder if direction == "decode" else compile_encoder)(cls, version).source
