"""Downloads of jars: which sets one Maven is asked for, and what a failed one leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rivals.kafka_jars import Artifact, JarSet, resolve, resolve_all

MAVEN = """#!/bin/sh
echo "$PWD $MAVEN_OPTS" >> {log}
for place in . $(sed -n 's|.*<module>\\(.*\\)</module>.*|\\1|p' pom.xml); do mkdir -p $place/jars; done
test ! -e {log}.fails
"""
SETS = [JarSet(name, (Artifact("org.example", name, "1"),)) for name in ("one", "two")]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file into which a stub of Maven writes its directory and options; the stub creates the directories of jars,
    empty."""
    log = tmp_path / "log"
    for name, text in {"mvn": MAVEN.format(log=log), "java": "#!/bin/sh\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("MAVEN_OPTS", "-Dproxy=here")
    return log


def test_one_maven_fetches_several_sets(tmp_path: Path, log: Path) -> None:
    resolve_all(SETS, tmp_path / "kafka")
    assert [line.split()[0] for line in log.read_text().splitlines()] == [str(tmp_path / "kafka" / "all")]
    assert resolve(*SETS[1], tmp_path / "kafka").is_dir()
    assert len(log.read_text().splitlines()) == 1


def test_only_missing_jars_are_downloaded(tmp_path: Path, log: Path) -> None:
    resolve(*SETS[0], tmp_path / "kafka")
    resolve_all(SETS, tmp_path / "kafka")
    ran = [line.split()[0] for line in log.read_text().splitlines()]
    assert ran == [str(tmp_path / "kafka" / "one"), str(tmp_path / "kafka" / "two")]


def test_another_artifact_is_fetched_again(tmp_path: Path, log: Path) -> None:
    resolve(*SETS[0], tmp_path / "kafka")
    resolve("one", [Artifact("org.example", "one", "2")], tmp_path / "kafka")
    assert len(log.read_text().splitlines()) == 2


def test_the_users_options_stay(tmp_path: Path, log: Path) -> None:
    resolve(*SETS[0], tmp_path / "kafka")
    assert log.read_text().split()[-1] == "-Dproxy=here"


def test_a_failed_maven_leaves_nothing_that_looks_whole(tmp_path: Path, log: Path) -> None:
    fails = log.with_name("log.fails")
    fails.touch()
    with pytest.raises(RuntimeError, match="could not resolve all"):
        resolve_all(SETS, tmp_path / "kafka")
    fails.unlink()
    resolve_all(SETS, tmp_path / "kafka")
    assert len(log.read_text().splitlines()) == 2
