"""The address of a Delta table: a directory, or a prefix of an object store, as pyarrow and as ``deltalake`` name it.

    given      /lake/orders      s3://bucket/orders?endpoint_override=...&region=...
    path       /lake/orders      s3://bucket?endpoint_override=...&region=.../orders      (``files.remote``)
    uri        /lake/orders      s3://bucket/orders, and the query as options

Credentials are never part of an address: both libraries take them from the environment (``AWS_ACCESS_KEY_ID`` and so
on).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tidelog.pipeline.errors import OptionError, RemoteError, one_line
from tidelog.pipeline.files.remote import is_remote
from tidelog.pipeline.files.storage import resolve_path
from tidelog.pipeline.job_errors import JobError

if TYPE_CHECKING:
    from deltalake import DeltaTable

Options = tuple[tuple[str, str], ...]
#: An unreachable store is reported within half a minute; deltalake alone would try for three minutes.
PATIENCE: Options = (("max_retries", "3"), ("retry_timeout", "30s"))
_SCHEMES = ("s3", "gs", "abfs", "abfss")
_S3_OPTIONS = ("endpoint_override", "region", "scheme")


@dataclass(frozen=True, slots=True)
class DeltaAddress:
    """An address of a table. ``path``: for pyarrow; ``uri`` and ``options``: for deltalake."""

    path: str
    uri: str
    options: Options = ()

    @classmethod
    def of(cls, given: str) -> DeltaAddress:
        """Parse the address that a user gave. Raises OptionError."""
        path = resolve_path(given, "Delta table")
        if not is_remote(path):
            return cls(path, path)
        scheme, _, rest = path.partition("://")
        authority, _, key = rest.partition("/")
        bucket, _, query = authority.partition("?")
        if scheme not in _SCHEMES or not key:
            raise OptionError(f"Delta table {given}: expected a directory or an address such as s3://BUCKET/TABLE")
        return cls(path, f"{scheme}://{bucket}/{key}", (*_options(given, scheme, query), *PATIENCE))

    @property
    def is_remote(self) -> bool:
        """Return whether the table lies in an object store."""
        return is_remote(self.path)

    def open(self, version: int | None = None) -> DeltaTable:
        """Open a version of the table, by default the newest. Raises RemoteError, JobError, OSError for a directory."""
        from deltalake import DeltaTable

        with delta_errors(self):
            return DeltaTable(self.uri, version=version, storage_options=dict(self.options))

    def open_if_there(self) -> DeltaTable | None:
        """Open the newest version; None if there is no table. Raises RemoteError, JobError, OSError for a directory.

        Usually there is one. So it is opened first: a look for it asks the store as often as two commits do.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        options = dict(self.options)
        with delta_errors(self):
            try:
                return DeltaTable(self.uri, storage_options=options)
            except DeltaError:
                if DeltaTable.is_deltatable(self.uri, options):
                    raise
        return None


def _options(given: str, scheme: str, query: str) -> Options:
    """Translate the query of an address to deltalake's storage options. Raises OptionError."""
    found = {name: unquote(value) for name, _, value in (part.partition("=") for part in query.split("&") if part)}
    unknown = [name for name in found if scheme != "s3" or name not in _S3_OPTIONS]
    if unknown:
        raise OptionError(
            f"Delta table {given}: option {unknown[0]} is unknown; expected, for s3, {', '.join(_S3_OPTIONS)}"
        )
    options = [("AWS_REGION", found["region"])] if "region" in found else []
    if "endpoint_override" in found:
        endpoint = found["endpoint_override"]
        if "://" not in endpoint:
            endpoint = f"{found.get('scheme', 'https')}://{endpoint}"
        options += [("AWS_ENDPOINT_URL", endpoint), ("AWS_ALLOW_HTTP", str(endpoint.startswith("http:")).lower())]
    return tuple(options)


@contextmanager
def delta_errors(address: DeltaAddress) -> Iterator[None]:
    """Turn deltalake's errors inside ``with`` into JobErrors of one line, and an OSError about an object store into a
    RemoteError."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except DeltaError as error:
        raise JobError(f"Delta table {address.uri}: {one_line(error)}") from error
    except OSError as error:
        if not address.is_remote:
            raise
        raise RemoteError(f"Delta table {address.uri}: {one_line(error)}") from error
