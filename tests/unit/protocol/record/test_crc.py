"""Checksums: known values, and the extension loaded without the rest of the package."""

from __future__ import annotations

import subprocess
import sys

import crc32c as package
import pytest

from tidelog.protocol.record import crc


def test_known_values() -> None:
    assert crc.crc32c(b"123456789") == 0xE3069283
    assert crc.crc32(b"123456789") == 0xCBF43926


def test_a_checksum_continues_from_another_over_any_buffer() -> None:
    assert crc.crc32c(memoryview(b"6789"), crc.crc32c(bytearray(b"12345"))) == 0xE3069283


def test_importing_it_does_not_import_the_package() -> None:
    """The package's ``__init__`` costs a third of the start-up budget."""
    code = "import sys, tidelog.protocol.record.crc\n"
    code += "sys.exit('argparse' in sys.modules or 'importlib.metadata' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_where_the_extension_is_not_found_the_package_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crc, "EXTENSION_SUFFIXES", [])
    assert crc.load() is package.crc32c
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "crc32c")
    assert crc.load()(b"123456789") == 0xE3069283
    monkeypatch.setattr("importlib.machinery.PathFinder.find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "crc32c", package)
    assert crc.load() is package.crc32c
