"""Options of jobs: each flag once, and each with a help text."""

from __future__ import annotations

from collections.abc import Callable

import click
import pytest

from tidelog.commands import pipeline_options

JOBS = ("export", "audit", "index", "compact", "replay", "backfill")


@pytest.mark.parametrize("job", JOBS)
def test_a_job_has_each_flag_once_with_a_help_text(job: str) -> None:
    build: Callable[[], list[click.Parameter]] = getattr(pipeline_options, f"{job}_options")
    parameters = build()
    flags = [flag for parameter in parameters for flag in parameter.opts]
    names = [parameter.name for parameter in parameters]
    assert len(flags) == len(set(flags))
    assert len(names) == len(set(names))
    assert [one.name for one in parameters if isinstance(one, click.Option) and not one.help] == []
