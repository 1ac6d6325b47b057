"""The processes that hold locks on files, as Linux lists them in ``/proc/locks``.

1: POSIX  ADVISORY  WRITE 1234 fe:01:9175 0 EOF      number, kind, mode, access, process, device and inode, range
"""

from __future__ import annotations

import os

LOCKS = "/proc/locks"
_PROCESS, _FILE = 4, 5


def holder_of(path: str) -> int | None:
    """Find the id of the process that has locked a file; None if none is listed. Locks of processes outside of this
    container are not listed.

    Files on several disks may have the same inode number, so the device counts, too. On btrfs and some overlays
    ``stat`` tells another device than the list: then None is returned, though a process may hold the lock.
    """
    try:
        status = os.stat(path)
        with open(LOCKS, encoding="ascii") as file:
            lines = [line.split() for line in file]
    except OSError:
        return None
    # In hexadecimal digits, two at least, as the kernel prints them.
    file_id = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for fields in lines:
        if "->" in fields or len(fields) <= _FILE:
            continue  # this process waits for the lock, and does not hold it
        if fields[_FILE] == file_id and fields[_PROCESS].isdecimal():
            return int(fields[_PROCESS])
    return None
