"""A run of benchmarks: the order of the rivals, a failure of one section, comparisons with the floor."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.native import LoadError
from benchmarks.report import Results
from benchmarks.rivals.process import BrokerProcess
from benchmarks.rows import FLOOR, QUICK, TIDELOG, Contender, Metric, Row, Run
from benchmarks.run import FIRST_PAIR, Bench, arguments, rotate_contenders
from benchmarks.sections import SECTIONS


def launch(directory: Path) -> BrokerProcess:
    return BrokerProcess(directory)


TAKING_PART = [Contender(TIDELOG, launch), Contender(FLOOR, launch, has_topics=False)]


def bench(tmp_path: Path) -> Bench:
    return Bench(QUICK, TAKING_PART, tmp_path, Results())


def test_each_round_begins_with_another_broker() -> None:
    assert [rotate_contenders(TAKING_PART, number)[0].name for number in range(3)] == [TIDELOG, FLOOR, TIDELOG]


def test_pairs_alternate_and_their_ratio_is_kept(tmp_path: Path) -> None:
    order = []

    def measure(run: Run, contender: Contender) -> dict[str, float]:
        order.append((run.round - FIRST_PAIR, contender.name, run.scale.payload_bytes))
        return {"total": 3.0 if contender.name == TIDELOG else 2.0}

    measured = bench(tmp_path)
    row = Row("r", "r", (Metric("times_floor", "t", "x"),), measure, (TIDELOG, FLOOR), serving=False, in_pairs=True)
    measured.measure_pairs(row)
    size = QUICK.pair_bytes
    assert order == [(0, TIDELOG, size), (0, FLOOR, size), (1, FLOOR, size), (1, TIDELOG, size)]
    assert measured.results.median("r", "times_floor", TIDELOG) == 1.5


def test_each_reading_is_one_of_a_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readings = []

    def measure(run: Run, contender: Contender) -> dict[str, float]:
        readings.append(run.scale.fetch_readings)
        return {"total": float(len(readings)) if contender.name == TIDELOG else 1.0}

    measured = bench(tmp_path)
    row = Row("r", "r", (), measure, (TIDELOG, FLOOR), serving=False, in_pairs=True, reads=True)
    measured.measure_pairs(row)
    assert readings == [1] * (2 * QUICK.pairs * QUICK.fetch_readings)
    assert capsys.readouterr().out.endswith("r [8 pairs] quartiles 4.25 / 8.5 / 12.8 times the floor\n")


@pytest.mark.parametrize("error", [LoadError("closed"), OSError(28, "full")])
def test_a_failure_is_noted_and_the_others_are_measured(tmp_path: Path, error: Exception) -> None:
    def measure(run: Run, contender: Contender) -> dict[str, float]:
        if contender.name == FLOOR:
            raise error
        return {"total": 1.0}

    measured = bench(tmp_path)
    measured.measure_row(Row("r", "r", (), measure, (TIDELOG, FLOOR), serving=False, rounds=1))
    assert measured.results.values == {("r", "total", TIDELOG): [1.0]}
    assert measured.results.failures == [f"r [1] floor failed: {error}"]


def test_a_row_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(["--only", "nothing"])
    assert "nothing" in capsys.readouterr().err


def test_a_run_that_is_interrupted_measures_no_other_section(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def note_sections(names: list[str], *_: object, **__: object) -> list[tuple[str, str]]:
        asked.append(names)
        return []

    monkeypatch.setattr(Bench, "measure", interrupt)
    monkeypatch.setattr(run, "run_sections", note_sections)
    with pytest.raises(KeyboardInterrupt):
        run.main(["--quick", "--section", next(iter(SECTIONS)), "--rival", "none"], lambda _: None)
    assert asked == [[]]
