"""Files that only their owner can read: configurations of brokers that this process starts, keys of certificates."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def write_properties(path: Path, texts: Mapping[str, str]) -> None:
    """Write a properties file that only its owner can read."""
    write_privately(path, "".join(f"{key}={escape(text)}\n" for key, text in texts.items()))


def escape(text: str) -> str:
    """Escape a text for a properties file."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def write_privately(path: Path, text: str) -> None:
    """Write a file that only its owner can read. A file that exists keeps its mode."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
