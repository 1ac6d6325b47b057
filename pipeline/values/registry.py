"""The schemas of a registry with Confluent's API, and the header by which a value names its schema.

    value    0 | schema id, 4 bytes | payload
    payload  Avro and JSON: the encoded value
             Protobuf: indices of the message in its file, as varints | the encoded message

The client is the one of the package confluent-kafka. Each process that decodes creates its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import finalize

from tidelog.pipeline.errors import one_line
from tidelog.pipeline.job_errors import REGISTRY_INSTALL, BadRequestError, JobError, missing_package_error
from tidelog.protocol.urls import write_url

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

MAGIC = 0
HEADER = 5
#: Timeout of a request in seconds; without it the client would wait forever.
TIMEOUT_S = 30
#: A registry's error codes for a missing subject, version and schema.
_NOT_FOUND = (40401, 40402, 40403)
MAX_PATHS, MAX_DEPTH = 1000, 100
"""Limits of references: paths along them, and depth. Thirty schemas, each with two references to the next, have 2^30
paths."""
_VARINT_BITS = 35
"""Bits in the five bytes of the longest varint of 32 bits, seven in each."""
_NUMBERS = (
    "timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity", "cache.latest.ttl.sec",
)  # fmt: skip
Settings = tuple[tuple[str, str], ...]


class UndecodableError(Exception):
    """A value does not match its format or schema, or its schema cannot be found or used; the message is one line."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema of a registry. ``references``: pairs of the name by which it imports another schema, and that schema.

    ``text``: the schema as JSON; of kind PROTOBUF, the base64 of a FileDescriptorProto.

    Raises UndecodableError when references have too many paths or levels: a comparison of two schemas follows each
    path.
    """

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, RegisteredSchema], ...] = ()
    paths: int = field(init=False, compare=False, repr=False)
    """Number of paths along references from this schema, itself included."""
    depth: int = field(init=False, compare=False, repr=False)
    """Number of schemas on the longest path."""

    def __post_init__(self) -> None:
        paths = 1 + sum(one.paths for _, one in self.references)
        depth = 1 + max((one.depth for _, one in self.references), default=0)
        if paths > MAX_PATHS or depth > MAX_DEPTH:
            raise UndecodableError(
                f"schema {self.id} has over {MAX_PATHS} paths of references, or over {MAX_DEPTH} levels"
            )
        object.__setattr__(self, "paths", paths)
        object.__setattr__(self, "depth", depth)


@dataclass(frozen=True, slots=True)
class Registry:
    """A schema registry, known by the settings of its client, such as ``url``."""

    settings: Settings = field(repr=False)

    def schema_by_id(self, number: int) -> RegisteredSchema:
        """Return the schema of an id. Raises UndecodableError if it is missing or has too many references, JobError."""
        return _load_schema(self.settings, number)

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """List the schemas of a subject, the oldest first; empty if there is no such subject. Raises JobError."""
        return self._load_versions(subject, self._numbers(subject))

    def deleted_versions(self, subject: str) -> list[RegisteredSchema]:
        """List the schemas whose versions were deleted softly: their ids can still be looked up. Raises JobError."""
        known = self._numbers(subject)
        return self._load_versions(
            subject, [number for number in self._numbers(subject, deleted=True) if number not in known]
        )

    def _numbers(self, subject: str, *, deleted: bool = False) -> list[int]:
        """List the numbers of a subject's versions, with ``deleted`` also of those that were deleted."""
        try:
            with _asking(self.settings, f"subject {subject}") as client:
                return sorted(client.get_versions(subject, deleted=deleted))
        except UndecodableError:
            return []

    def _load_versions(self, subject: str, numbers: list[int]) -> list[RegisteredSchema]:
        found = []
        try:
            for number in numbers:
                with _asking(self.settings, f"version {number} of subject {subject}") as client:
                    version = client.get_version(subject, number, deleted=True)
                if version.schema_id is not None:
                    found.append(self.schema_by_id(version.schema_id))
        except UndecodableError as error:
            raise BadRequestError(f"subject {subject}: {error}") from error
        return found

    def latest_schema(self, subject: str) -> RegisteredSchema:
        """Return the newest schema of a subject. Raises UndecodableError if there is none, JobError."""
        with _asking(self.settings, f"subject {subject}") as client:
            number = client.get_latest_version(subject).schema_id
        assert number is not None
        return self.schema_by_id(number)

    def register(self, subject: str, kind: str, text: str) -> RegisteredSchema:
        """Register a schema under a subject, unless it has the schema already. Raises JobError, UndecodableError."""
        with _asking(self.settings, f"subject {subject}") as client:
            from confluent_kafka.schema_registry import Schema

            return self.schema_by_id(client.register_schema(subject, Schema(text, kind)))

    def close(self) -> None:
        """Close the connections of the client that all registries of these settings share.

        The process forgets its clients of other settings, too; they close with the last reference to them.
        """
        if _client.cache_info().currsize:
            _client(self.settings).close()
            _client.cache_clear()


def split_header(value: bytes) -> tuple[int, bytes]:
    """Split a value into schema id and payload. Raises UndecodableError."""
    if len(value) < HEADER or value[0] != MAGIC:
        raise UndecodableError("it does not begin with the id of a schema")
    return int.from_bytes(value[1:HEADER], "big"), value[HEADER:]


def read_indices(payload: bytes) -> tuple[list[int], bytes]:
    """Read the indices of a Protobuf message in its file; return them and the bytes after them. Raises
    UndecodableError."""
    numbers = _varints(payload)
    try:
        count, end = next(numbers)
        if not count:
            return [0], payload[end:]
        found = [next(numbers) for _ in range(count)]
    except StopIteration:
        raise UndecodableError("the indices of its message are incomplete") from None
    if count < 0 or any(index < 0 for index, _ in found):
        raise UndecodableError("an index of its message is negative")
    return [index for index, _ in found], payload[found[-1][1] :]


def _varints(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield zigzag varints and the position after each. Raises UndecodableError."""
    value = shift = 0
    for position, byte in enumerate(data):
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > _VARINT_BITS:
            raise UndecodableError("an index of its message is too large")
        if byte < 0x80:
            yield (value >> 1) ^ -(value & 1), position + 1
            value = shift = 0


@contextmanager
def _asking(settings: Settings, what: str) -> Iterator[SchemaRegistryClient]:
    """Give the client, and turn its errors inside ``with`` into JobErrors, or UndecodableError if the registry does not
    have ``what``.

    A 404 of another server, such as a gateway before a registry that is down, does not mean that ``what`` is missing.
    Raises BadRequestError for wrong settings, MissingPackageError.
    """
    client = _client(settings)  # before any import from its package, which may be missing
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    try:
        yield client
    except (UndecodableError, JobError):
        raise
    except SchemaRegistryError as error:
        if error.error_code in _NOT_FOUND:
            raise UndecodableError(f"the registry has no {what}") from error
        raise JobError(f"schema registry {_hosts_of(settings)}, {what}: {one_line(error)}") from error
    except _client_errors() as error:
        raise JobError(f"schema registry {_hosts_of(settings)}, {what}: {one_line(error)}") from error


def _hosts_of(settings: Settings) -> str:
    """Return the hosts of the registry's URLs, without logins that the URLs may have."""
    urls = dict(settings).get("url", "").split(",")
    return ",".join(urlsplit(url.strip()).netloc.rpartition("@")[2] for url in urls)


def _client_errors() -> tuple[type[Exception], ...]:
    """Return the error types of the client and of its HTTP library, whose package is httpx2 or httpx."""
    from confluent_kafka.schema_registry.error import OAuthTokenError

    own = (OSError, ValueError, TypeError, OAuthTokenError)
    try:
        import httpx2
    except ImportError:
        import httpx

        return (*own, httpx.HTTPError)
    return (*own, httpx2.HTTPError)


def _check_urls(urls: str) -> None:
    """Raise BadRequestError for a URL that the client would refuse: its errors show logins."""
    for url in filter(None, map(str.strip, urls.split(","))):
        try:
            parts = urlsplit(url)
            is_valid = parts.scheme in ("http", "https", "mock") and parts.port != 0
        except ValueError:
            is_valid = False
        if not is_valid:
            raise BadRequestError(f"schema registry: {write_url(url)} is no URL of http or https")


@lru_cache(maxsize=4)
def _client(settings: Settings) -> SchemaRegistryClient:
    """Return the client of these settings. Raises BadRequestError, MissingPackageError."""
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise missing_package_error("confluent-kafka's registry client", REGISTRY_INSTALL) from error

    _check_urls(dict(settings).get("url", ""))
    try:
        given = {name: int(text) if name in _NUMBERS else text for name, text in settings}
        client = SchemaRegistryClient({"timeout": TIMEOUT_S, **given})
    except (ValueError, TypeError) as error:
        raise BadRequestError(f"schema registry: {one_line(error)}") from error
    # A client that left this cache may still be in use: its connections close with the last reference to it.
    finalize(client, client._rest_client.session.close)
    return client


@lru_cache(maxsize=1000)
def _load_schema(settings: Settings, number: int) -> RegisteredSchema:
    with _asking(settings, f"schema {number}") as client:
        # Only Protobuf has a serialized form beside its text; for other types the format is ignored. The client caches
        # a schema by its id, whatever its format.
        found = client.get_schema(number, fmt="serialized")
        references = tuple((one.name or "", _load_referenced(settings, one)) for one in found.references or ())
    return RegisteredSchema(number, found.schema_type or "AVRO", found.schema_str or "", references)


def _load_referenced(settings: Settings, reference: Any) -> RegisteredSchema:
    found = _client(settings).get_version(reference.subject, reference.version, deleted=True)
    assert found.schema_id is not None
    return _load_schema(settings, found.schema_id)
