"""Core dumps of a process that forbids them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidelog.commands.running import core_dumps

ASK = "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
"""PR_GET_DUMPABLE: 1 where dumps are written."""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
@pytest.mark.parametrize(("call", "answer"), [("", "1"), ("core_dumps.forbid_core_dumps()", "0")])
def test_no_dump_is_written_of_a_process_that_forbids_it(call: str, answer: str) -> None:
    program = f"from {core_dumps.__package__} import core_dumps\n{call}\n{ASK}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == answer
