"""Checksums of records: CRC-32C (Castagnoli) for magic 2, IEEE CRC-32 for magic 0 and 1.

The ``crc32c`` package's own ``__init__`` imports ``importlib.metadata`` and ``argparse``. That takes 64 ms, a third of
the time that a broker's start may take; its extension module alone takes half a millisecond. So the extension is loaded
by itself. If the package is laid out differently, the package is imported the ordinary way.
"""

from __future__ import annotations

import os.path
import sys
from binascii import crc32
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec, PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["crc32", "crc32c"]

_EXTENSION = "crc32c._crc32c"


def _extension_path() -> str | None:
    """Return the path of the package's extension module, without importing the package."""
    spec = PathFinder.find_spec("crc32c")
    for location in (spec.submodule_search_locations if spec else None) or ():
        for suffix in EXTENSION_SUFFIXES:
            path = os.path.join(location, f"_crc32c{suffix}")
            if os.path.exists(path):
                return path
    return None


def load() -> Callable[..., int]:
    """Load the extension's ``crc32c`` without its package; if it is not found, import the package."""
    path = None if "crc32c" in sys.modules else _extension_path()
    if path is None:
        from crc32c import crc32c as imported

        return imported
    loader = ExtensionFileLoader(_EXTENSION, path)
    module: Any = module_from_spec(ModuleSpec(_EXTENSION, loader, origin=path))
    loader.exec_module(module)
    return module.crc32c  # type: ignore[no-any-return]


#: ``crc32c(data, value=0) -> int``: unsigned CRC-32C of any buffer; releases the GIL above 32 KiB. Any thread.
crc32c: Callable[..., int] = load()
