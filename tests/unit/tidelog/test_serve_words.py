"""Options of ``tidelog serve`` that are parsed without click: with click's result, or left to click; its input."""

from __future__ import annotations

import asyncio
import os
import pty

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidelog.commands.running import serve, serve_process
from tidelog.commands.running.serve_process import (
    FLAGS,
    VALUES,
    ServeWords,
    environment_level,
    read_words,
    stop_at_end_of_input,
)

TEXTS = ["", "9", "0", "-1", " 7", "1_0", "\u0665", "a=b", "=", "--", "-h", "--host", "info", "INFO", "debug", "x y"]
NAMES = [*VALUES, *FLAGS, "--port=", "--hos", "-h", "--help", "--", "serve"]
WORDS = st.lists(
    st.one_of(
        st.sampled_from([*NAMES, *TEXTS]),
        st.builds("{}={}".format, st.sampled_from(NAMES), st.sampled_from(TEXTS)),
    ),
    max_size=6,
)


def read_by_click(words: list[str]) -> ServeWords | None:
    """Read the options as click does; returns None for what it refuses, and for --help."""
    try:
        with serve.command.make_context("serve", list(words)) as context:
            return ServeWords(**context.params)
    except (click.ClickException, click.exceptions.Exit):
        return None


@given(WORDS)
@example(["--port", "9092", "--override", "a=b", "--override=c=d", "--strict"])
@example(["--host", "--port", "--port=1"])
def test_options_are_read_as_click_reads_them(words: list[str]) -> None:
    found = read_words(words)
    if found is not None:
        level = found.log_level or environment_level()
        assert found._replace(log_level=level) == read_by_click(words)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--data-dir", "/d", "--port", "0"],
        ["--config", "f", "--override", "a=b", "--override", "c=d", "--until-stdin-closes"],
        ["--log-level=debug", "--host=::1", "--strict"],
        ["--laboratory-listener", "127.0.0.1:0"],
    ],
)
def test_usual_options_need_no_click(words: list[str]) -> None:
    assert read_words(words) is not None


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--port", "x"], ["--port", "9" * 5000], ["--port"], ["--log-level", "loud"], ["--nothing"], ["x"]],
)
def test_the_rest_is_left_to_the_command_line(words: list[str]) -> None:
    assert read_words(words) is None


def test_every_option_is_known() -> None:
    declared = {name: option.name for option in serve.command.params for name in option.opts}
    assert declared == VALUES | FLAGS
    assert set(serve_process.ServeWords._fields) == set(declared.values())


@pytest.mark.parametrize("is_terminal", [False, True])
async def test_the_end_of_the_input_stops_the_broker_once(*, is_terminal: bool) -> None:
    """The input stays readable after its end, and a long stop has many turns of the loop."""
    stops: list[str] = []
    writing, reading = pty.openpty() if is_terminal else os.pipe()[::-1]
    loop = asyncio.get_running_loop()
    stop_at_end_of_input(loop, reading, lambda: stops.append("stop"))
    os.write(writing, b"typed\n")
    await asyncio.sleep(0.01)
    assert stops == []
    os.close(writing)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert stops == ["stop"]
    assert not loop.remove_reader(reading)
    os.close(reading)


async def test_input_that_another_process_reads_first_does_not_stop_the_broker() -> None:
    """Processes share the pipe or terminal, and one of them may have made its reads non-blocking."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    loop, stops = asyncio.get_running_loop(), list[str]()
    loop.add_reader(reading, lambda: os.read(reading, 100))
    os.write(writing, b"typed\n")
    ours = os.dup(reading)  # its callback runs in the same turn, after the one that has read everything
    stop_at_end_of_input(loop, ours, lambda: stops.append("stop"))
    await asyncio.sleep(0.01)
    assert stops == []
    loop.remove_reader(reading)
    os.close(writing)
    await asyncio.sleep(0.01)
    assert stops == ["stop"]
    for descriptor in (reading, ours):
        os.close(descriptor)
