"""Real input for end-to-end tests: text not written for tests, with empty, long and non-ASCII lines.

The text is the package index of Debian as ``apt-cache dumpavail`` prints it. If apt is missing or its index too short,
it is the source code of Python's standard library, file after file by name. Neither text needs a network, and both are
the same at each call on one machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from benchmarks.rivals.kafka_jars import BUILD, build_lock

LINES = 200_000
PACKAGE = b"Package: "


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its newline, and the package or file it belongs to."""

    number: int
    section: bytes
    text: bytes


@cache
def real_lines(count: int = LINES) -> tuple[Line, ...]:
    """Return ``count`` lines of real text. Raises LookupError if the machine has too few."""
    for source in (_debian_index, _standard_library):
        lines = tuple(Line(number, *line) for number, line in enumerate(islice(source(), count)))
        if len(lines) == count:
            return lines
    raise LookupError(f"no text of {count} lines on this machine")


def _debian_index() -> Iterator[tuple[bytes, bytes]]:
    apt_cache = shutil.which("apt-cache")
    if apt_cache is None:
        return
    section = b""
    with _printed_index(apt_cache).open("rb") as printed:
        for line in printed:
            text = line.rstrip(b"\r\n")
            if text.startswith(PACKAGE):
                section = text.removeprefix(PACKAGE)
            yield section, text


def _printed_index(apt_cache: str) -> Path:
    """Return a file with the first lines that ``apt-cache`` prints, which takes a second: it runs once."""
    directory = BUILD / "real_text"
    text, unfinished = directory / "index.txt", directory / "index.new"
    with build_lock(directory):
        if not text.exists():
            command = [apt_cache, "dumpavail"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as printing:
                assert printing.stdout is not None
                unfinished.write_bytes(b"".join(islice(printing.stdout, LINES)))
                printing.kill()
            unfinished.rename(text)
    return text


def _standard_library() -> Iterator[tuple[bytes, bytes]]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if "site-packages" not in path.parts:
            section = str(path.relative_to(root)).encode()
            for text in path.read_bytes().splitlines():
                yield section, text
