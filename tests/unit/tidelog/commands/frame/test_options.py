"""Values of options: texts of files, passwords, pairs."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from tidelog.cli import main
from tidelog.commands.frame.options import key_value_pairs, key_values


@pytest.mark.parametrize(
    "words",
    [
        "user create ann --password-stdin",
        "adopt kafka --data-dir data --topic-configs {file}",
        "produce t --value-format avro --registry http://127.0.0.1:1 --value-schema {file}",
    ],
)
def test_a_text_that_is_not_utf8_is_one_line(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "latin1"
    path.write_bytes(b"caf\xe9\n")
    monkeypatch.setattr(os, "umask", lambda _mask: 0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n")))
    assert main(words.format(file=path).split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "UTF-8" in line
    assert "caf" not in line, "it may be a password"


def test_a_key_may_have_several_values() -> None:
    texts = ["a=1", "b=", "a=2"]
    assert key_value_pairs(texts, "--header") == [("a", "1"), ("b", ""), ("a", "2")]
    assert key_values(texts, "--config") == {"a": "2", "b": ""}
