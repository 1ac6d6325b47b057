from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from tidelog import cli


def test_help_lists_every_command_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert f"\n  {name} " in out


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "ping"]) == 0
    assert capsys.readouterr().out.startswith("usage: tidelog ping")


def test_without_a_command_the_help_is_shown_and_the_code_says_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "commands:" in capsys.readouterr().out


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


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_its_three_parts_and_a_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = cli.load(name)
    assert "\n" not in module.HELP
    assert callable(module.add_arguments)
    assert callable(module.run)
    assert cli.main([name, "--help"]) == 0
    assert f"usage: tidelog {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_an_unknown_option_is_wrong_usage(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--no-such-option"]) == 2
    assert f"usage: tidelog {name}" in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_version(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([argument]) == 0
    assert capsys.readouterr().out.startswith("tidelog 0.")


@pytest.fixture
def quiet_signals(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """Handlers that ``serve`` installs, noted instead of installed."""
    installed: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", installed.__setitem__)
    return installed


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--override", "num.partitions=0"], "num.partitions"),
        (["--override", "nonsense"], "key=value"),
        (["--config", "/no/such/file"], "/no/such/file"),
        (["--port", "70000"], "70000"),
    ],
)
def test_wrong_configuration_ends_in_one_line_and_code_2(
    options: list[str],
    told: str,
    quiet_signals: dict[int, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve = importlib.import_module("tidelog.commands.serve")
    monkeypatch.setattr(serve, "configure_logging", lambda level: None)
    assert cli.main(["serve", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("tidelog serve: ")
    assert told in line


def test_a_signal_before_the_broker_runs_ends_it_well(
    quiet_signals: dict[int, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = importlib.import_module("tidelog.commands.serve")
    monkeypatch.setattr(serve, "configure_logging", lambda level: None)
    cli.main(["serve", "--override", "nonsense"])
    for number in (signal.SIGTERM, signal.SIGINT):
        with pytest.raises(SystemExit) as ended:
            quiet_signals[number](number, None)
        assert ended.value.code == 0


def test_the_serve_command_imports_little_before_it_is_asked() -> None:
    module: ModuleType = importlib.import_module("tidelog.commands.serve")
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
    assert ended.returncode == cli.EXIT_OUTPUT_CLOSED
    assert "Broken pipe" not in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("name", ["find", "compaction"])
def test_commands_that_report_system_errors_do_not_report_a_closed_output(name: str) -> None:
    words = {"find": ["find", "topic", "--key", "k"], "compaction": ["compaction", "status"]}[name]
    function = {"find": "ask", "compaction": "show_status"}[name]
    script = f"""
import sys
from tidelog import cli
from tidelog.commands import {name} as command

def print_much(*arguments, **options):
    for number in range(100_000):
        print(number)
    return 0

command.{function} = print_much
sys.exit(cli.main({words!r}))
"""
    ended = run_with_closed_output(script)
    assert ended.stderr == ""
    assert ended.returncode == cli.EXIT_OUTPUT_CLOSED


def test_another_broken_pipe_is_an_error_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(arguments: Any) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(cli.load("version"), "run", break_off)
    with pytest.raises(BrokenPipeError):
        cli.main(["version"])
