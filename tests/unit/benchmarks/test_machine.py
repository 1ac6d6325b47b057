"""The description of the machine: it names uncompiled modules, and some programs refuse to measure without compiled
ones."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import machine, validation


def test_results_do_not_mention_that_tidelog_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "IS_COMPILED", True)
    assert "compiled" not in machine.describe()
    machine.require_compiled()


def test_results_say_that_tidelog_was_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "IS_COMPILED", False)
    assert "**Tidelog uncompiled**" in machine.describe()


@pytest.mark.parametrize("program", [machine.require_compiled, validation.main])
def test_programs_that_measure_their_own_process_refuse_plain_python(
    monkeypatch: pytest.MonkeyPatch, program: Any
) -> None:
    monkeypatch.setattr(machine, "IS_COMPILED", False)
    with pytest.raises(SystemExit, match=r"not compiled: run make extensions"):
        program()
