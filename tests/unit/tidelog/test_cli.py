from __future__ import annotations

import gc
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import click
import pytest

from tidelog import cli
from tidelog.commands import table
from tidelog.commands.frame.exit_codes import EXIT_INTERRUPTED, EXIT_OUTPUT_CLOSED


def command_of(*words: str) -> click.Command:
    """Return the declaration of a command."""
    found: click.Command = table.root
    for word in words:
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), word)
        assert inner is not None, words
        found = inner
    return found


def every_command(*words: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command, groups included."""
    found = command_of(*words)
    if words:
        yield words
    if isinstance(found, click.Group):
        for name in found.list_commands(click.Context(found)):
            yield from every_command(*words, name)


def test_help_lists_every_command_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in table.COMMANDS:
        assert f"\n  {name} " in out


def test_the_help_of_a_command_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "ping"]) == 0
    assert capsys.readouterr().out.startswith("Usage: tidelog ping")


def test_without_a_command_the_help_is_shown_and_the_exit_code_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "Commands:" in capsys.readouterr().out


def test_arguments_default_to_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tidelog", "help"])
    assert cli.main() == 0


def test_an_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sevre"]) == 2
    error = capsys.readouterr().err
    assert "sevre" in error
    assert "serve" in error


@pytest.mark.parametrize("words", [["help", "pingg"], ["help", "compaction", "runn"], ["help", "ping", "x"]])
def test_help_of_an_unknown_command_is_an_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"has no command {words[-1]!r}" in line


@pytest.mark.parametrize("path", sorted(map(" ".join, every_command())))
def test_every_command_explains_itself(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*path.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: tidelog {path}")
    assert cli.main(["help", *path.split()]) == 0
    assert capsys.readouterr().out == out


@pytest.mark.parametrize("name", table.COMMANDS)
def test_the_line_in_the_list_is_the_commands_own(name: str) -> None:
    assert command_of(name).get_short_help_str(limit=200) == table.COMMANDS[name].help


@pytest.mark.parametrize("path", sorted(map(" ".join, every_command())))
def test_every_option_and_command_has_a_help(path: str) -> None:
    command = command_of(*path.split())
    assert command.help, path
    unexplained = [one.name for one in command.params if isinstance(one, click.Option) and not one.help]
    assert not unexplained


TEXT_ALONE = {"completion", "help", "serve"}
"""Commands without a result of their own: a shell's script, a help, and a broker that runs."""


def test_every_command_prints_json() -> None:
    leaves = {" ".join(words) for words in every_command() if not isinstance(command_of(*words), click.Group)}
    without = {path for path in leaves if not any("--json" in one.opts for one in command_of(*path.split()).params)}
    assert without == TEXT_ALONE


@pytest.mark.parametrize("path", sorted(map(" ".join, every_command())))
def test_an_unknown_option_is_wrong_usage_in_one_line(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*path.split(), "--no-such-option"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tidelog {path}: no such option '--no-such-option'")


def test_the_list_of_commands_imports_none_of_them() -> None:
    script = "import sys; from tidelog import cli; cli.main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("tidelog.commands.")}
    assert {name for name in loaded if not name.startswith("tidelog.commands.frame")} == {"tidelog.commands.table"}


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads by /proc")
def test_numpy_starts_no_threads_in_a_command() -> None:
    count = "import numpy; print(len(os.listdir('/proc/self/task')))"
    script = f"import os; from tidelog import cli; cli.main(['--help']); {count}"
    others = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-I", "-c", script], env=others, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "1"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    assert "_TIDELOG_COMPLETE" in capsys.readouterr().out


def test_the_script_of_bash_completes_commands_and_options() -> None:
    def completed(*words: str) -> set[str]:
        environment = {
            **os.environ,
            "_TIDELOG_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["tidelog", *words]),
            "COMP_CWORD": str(len(words)),
        }
        done = subprocess.run(
            [sys.executable, "-m", "tidelog"], env=environment, capture_output=True, text=True, check=False
        )
        return set(done.stdout.split())

    assert completed("comp") == {"plain,compaction", "plain,completion"}
    assert "plain,--wait" in completed("compaction", "run", "--w")


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_the_version_is_printed(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([argument]) == 0
    assert capsys.readouterr().out.startswith("tidelog 0.")


@pytest.fixture
def quiet_signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, Any]]:
    """Handlers that ``serve`` installs, noted instead of installed; the collector's thresholds are set back."""
    installed: dict[int, Any] = {}
    thresholds = gc.get_threshold()
    monkeypatch.setattr(signal, "signal", installed.__setitem__)
    yield installed
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--override", "num.partitions=0"], "num.partitions"),
        (["--override", "nonsense"], "key=value"),
        (["--config", "/no/such/file"], "/no/such/file"),
        (["--port", "70000"], "70000"),
    ],
)
def test_wrong_configuration_ends_in_one_line_and_code_2(
    options: list[str],
    message: str,
    quiet_signals: dict[int, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve = importlib.import_module("tidelog.commands.running.serve_process")
    monkeypatch.setattr(serve, "configure_logging", lambda level: None)
    assert cli.main(["serve", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("tidelog serve: ")
    assert message in line


def test_a_signal_before_the_broker_runs_ends_it_well(
    quiet_signals: dict[int, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = importlib.import_module("tidelog.commands.running.serve_process")
    monkeypatch.setattr(serve, "configure_logging", lambda level: None)
    cli.main(["serve", "--override", "nonsense"])
    for number in (signal.SIGTERM, signal.SIGINT):
        with pytest.raises(SystemExit) as ended:
            quiet_signals[number](number, None)
        assert ended.value.code == 0


def test_a_request_to_read_stores_before_the_broker_runs_does_not_end_it(
    quiet_signals: dict[int, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = importlib.import_module("tidelog.commands.running.serve_process")
    monkeypatch.setattr(serve, "configure_logging", lambda level: None)
    cli.main(["serve", "--override", "nonsense"])
    quiet_signals[signal.SIGHUP](signal.SIGHUP, None)


def test_an_interrupted_import_of_a_command_ends_as_an_interrupted_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(argv: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "dispatch", interrupt)
    assert cli.main(["topic", "list"]) == 130


def test_the_serve_command_imports_little_before_it_is_asked() -> None:
    module: ModuleType = importlib.import_module("tidelog.commands.running.serve_process")
    for name in ("asyncio", "uvloop", "numpy", "broker"):
        assert not hasattr(module, name)


def run_with_closed_output(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python script whose standard output is a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, "-c", script],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, **environment},
        )
    finally:
        os.close(writer)


@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [
        (["version"], ""),
        (["version"], "1"),
        (["--help"], ""),
        (["dump-log", "--help"], ""),
        (["dump-log", "no-such.log"], ""),
        (["dump-log", "no-such.log"], "1"),
    ],
)
def test_a_closed_standard_output_ends_a_command_quietly(words: list[str], unbuffered: str) -> None:
    script = f"import sys; from tidelog.cli import main; sys.exit(main({words!r}))"
    ended = run_with_closed_output(script, PYTHONUNBUFFERED=unbuffered)
    assert ended.returncode == EXIT_OUTPUT_CLOSED
    assert "Broken pipe" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_command_that_reports_system_errors_does_not_report_a_closed_output() -> None:
    script = """
import sys
from tidelog import cli
from tidelog.commands.running import compaction

def print_much(*arguments, **options):
    for number in range(100_000):
        print(number)

compaction.show_status = print_much
sys.exit(cli.main(["compaction", "status"]))
"""
    ended = run_with_closed_output(script)
    assert ended.stderr == ""
    assert ended.returncode == EXIT_OUTPUT_CLOSED


def test_another_broken_pipe_is_an_error_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(*arguments: Any, **options: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(command_of("version"), "callback", break_off)
    with pytest.raises(BrokenPipeError):
        cli.main(["version"])


def test_an_interrupted_command_ends_as_a_shell_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_of("version"), "callback", interrupt)
    assert cli.main(["version"]) == EXIT_INTERRUPTED
