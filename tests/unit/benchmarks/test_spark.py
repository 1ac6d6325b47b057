"""Reader of the output of `java -version`."""

from __future__ import annotations

import pytest

from benchmarks.rivals.spark import java_version


@pytest.mark.parametrize(
    ("printed", "version"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_402"', 8), ("no such thing", None)],
)
def test_a_java_version_is_understood(printed: str, version: int | None) -> None:
    assert java_version(printed) == version
