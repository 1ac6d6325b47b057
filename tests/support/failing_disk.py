"""A disk that fails under a real broker: a small library, preloaded, that gives EIO or delays on demand.

A fault is on while its file exists. The file's first line is a part of the paths at which the fault occurs. For delays
a second line has the milliseconds; a delay also ends when its file is removed.

=========  ==============================================================================
``write``  writes and syncs fail, of files and directories, as when a disk dies
``read``   reads and ``sendfile`` fail, as at bad sectors
``rename`` renames fail
``slow``   writes are delayed
``sync``   syncs are delayed
=========  ==============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.broker import TidelogProcess
from tests.support.preloaded import compiled

SOURCE = Path(__file__).with_name("failing_disk.c")


class FailingDisk:
    """The library, and the switches of its faults, which are in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.library = compiled(SOURCE)
        self.switches = directory / "switches"
        self.switches.mkdir(parents=True)

    def fail(self, where: Path | str, *faults: str) -> None:
        """Switch ``faults`` on for every path that contains ``where``; without ``faults`` writes and syncs fail."""
        for fault in faults or ("write",):
            self._switch(fault, str(where))

    def delay(self, where: Path | str, milliseconds: int, *faults: str) -> None:
        """Switch on the delays ``slow`` or ``sync`` for every path that contains ``where``."""
        for fault in faults:
            self._switch(fault, f"{where}\n{milliseconds}")

    def _switch(self, fault: str, content: str) -> None:
        temporary = self.switches.with_name("next")
        temporary.write_text(content)
        temporary.rename(self.switches / fault)

    def heal(self) -> None:
        for switch in self.switches.iterdir():
            switch.unlink()


class BrokerOnFailingDisk(TidelogProcess):
    """A broker process with the library preloaded, so that the test can let its disk fail."""

    def __init__(self, directory: Path, disk: FailingDisk, overrides: Mapping[str, str]) -> None:
        super().__init__(directory, overrides)
        self.disk = disk

    def command(self) -> list[str]:
        """Return the command without ``--data-dir``, so that the broker uses ``log.dirs``."""
        words = super().command()
        at = words.index("--data-dir")
        return words[:at] + words[at + 2 :]

    def environment(self) -> dict[str, str]:
        preload = {"LD_PRELOAD": str(self.disk.library), "FAILING_DISK": str(self.disk.switches)}
        return {**super().environment(), **preload}
