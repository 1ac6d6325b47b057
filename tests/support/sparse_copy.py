"""Copies of directories whose files have holes: Kafka reserves 10 MB for each index, and writes only some bytes of it.

`shutil.copytree` writes the holes as zeros: 600 MB for thirty partitions of a killed broker, which took two seconds and
kept the disk busy for longer.
"""

from __future__ import annotations

import os
import shutil
from errno import ENXIO
from pathlib import Path
from typing import BinaryIO


def copy_tree(source: Path, target: Path) -> None:
    """Copy a directory; holes of its files stay holes."""
    shutil.copytree(source, target, copy_function=copy_file)


def copy_file(source: str, target: str) -> None:
    """Copy a file with its times and mode; its holes stay holes."""
    with open(source, "rb") as source_file, open(target, "wb") as target_file:
        target_file.truncate(os.fstat(source_file.fileno()).st_size)
        _copy_data(source_file, target_file)
    shutil.copystat(source, target)


def _copy_data(source: BinaryIO, target: BinaryIO) -> None:
    end, size = 0, os.fstat(source.fileno()).st_size
    while end < size:
        try:
            begin = os.lseek(source.fileno(), end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != ENXIO:  # ENXIO: the rest of the file is a hole
                raise
            return
        end = os.lseek(source.fileno(), begin, os.SEEK_HOLE)
        source.seek(begin)
        target.seek(begin)
        target.write(source.read(end - begin))
