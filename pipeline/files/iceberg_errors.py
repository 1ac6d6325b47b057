"""The errors of pyiceberg when files of a table's metadata are damaged: the metadata file, manifest lists, manifests.

Its decoders check little, so damaged bytes raise almost any error: KeyError, EOFError, UnicodeDecodeError, zlib.error,
SystemError.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.pipeline.errors import one_line
from tidelog.pipeline.job_errors import JobError

#: Errors by which pyiceberg fails on damaged bytes, or base classes of them.
_DAMAGE = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError, RuntimeError, SystemError,
    TypeError, ValueError, struct.error, zlib.error,
)  # fmt: skip


@contextmanager
def iceberg_errors(table: str) -> Iterator[None]:
    """Turn an error of reading a table's metadata, raised inside ``with``, into a JobError of one line.

    ``table`` begins the message. PipelineErrors, OSErrors and what a catalog answers are raised as they are.
    """
    from pyiceberg.exceptions import ValidationError

    try:
        yield
    except (*_DAMAGE, ValidationError) as error:
        raise JobError(f"{table}: its metadata cannot be read: {type(error).__name__}: {one_line(error)}") from error
