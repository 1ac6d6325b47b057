"""A real round finds every kernel compiled: none is left to be compiled under a serving process's interpreter lock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from pathlib import Path

from tidelog.cleaner.engine import warm_kernels, kernels, lz4_kernels, map_kernels, transaction_kernels
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions
from tests.support.cleaning import NOW_MS, LogWriter, compacted, open_log, whole

def compiled():
    return {
        (module.__name__, name): len(value.signatures)
        for module in (kernels, map_kernels, transaction_kernels, lz4_kernels)
        for name, value in vars(module).items() if hasattr(value, "signatures")
    }

before = compiled()
log = open_log(Path(sys.argv[1]), compacted(segment_bytes=2000))
writer = LogWriter(log)
for number in range(60):
    writer.append([(b"k%d" % (number % 20), None if number % 7 == 0 else b"v" * 50)], compression=number % 5)
    writer.transactional(number, [(b"t%d" % (number % 3), b"v")])
    writer.end(number, commit=number % 2 == 0)
writer.roll()
for map_bytes in (4096, 128):
    Cleaner(warm_kernels.ENGINE, CleanerOptions(map_bytes=map_bytes)).clean(whole(log), NOW_MS)
assert sum(before.values()) >= 10
assert compiled() == before, set(compiled().items()) ^ set(before.items())
"""


def test_no_kernel_is_compiled_in_a_round(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
