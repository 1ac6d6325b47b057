"""Choice of the engine that walks unsynced segments: plain Python at first, kernels once they are loaded.

Loading takes some milliseconds from the image of their machine code (``tidelog.log.records.array_kernels``), and 1 MB;
where there is none, as at the first large recovery of an installation, a child compiles it first (2 s). Recovery does
not wait for it but changes over in the middle of a segment. Results are equal (``tidelog.log.recovery.scan_kernels``),
so nothing depends on when that happens. Any thread.
"""

from __future__ import annotations

from typing import Any

#: Bytes to recover before kernels are worth loading. Per CPU second the plain walk does 280 MB at 1 KB a batch (180
#: when idempotent) and 1,650 MB at 16 KB, kernels 4,700 MB of any: so many take it 0.04 to 0.4 s, loading 0.05.
LOAD_AFTER_BYTES = 64 * 1024 * 1024


class ScanEngine:
    """The kernels once they are there. One per process, ``SCAN``; tests make their own."""

    __slots__ = ("kernels", "load_after_bytes", "loading")

    def __init__(self, load_after_bytes: int = LOAD_AFTER_BYTES) -> None:
        self.load_after_bytes = load_after_bytes
        self.loading = False
        self.kernels: Any = None

    def expect_bytes(self, count: int) -> None:
        """So many bytes will be walked: begin to load kernels when that is worth it."""
        if count >= self.load_after_bytes and not self.loading:
            self.loading = True
            from tidelog.log.records.kernel_loader import load_array_kernels  # not cheap to import, seldom needed
            from tidelog.log.recovery.scan_group import RECOVERY

            load_array_kernels(RECOVERY, self.use_kernels, self.use_kernels)

    def use_kernels(self, kernels: Any) -> None:
        """Change over to loaded kernels: an image's, or ``tidelog.log.recovery.scan_calls``."""
        self.kernels = kernels


#: The process's engine.
SCAN = ScanEngine()
