from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidelog.broker.config.sources import parse_properties
from tidelog.private_files import format_properties, write_privately

TEXTS = st.text(st.one_of(st.sampled_from(" \t\f\r\n\\=:#!u0é€🍊\x00\x85\u2028"), st.characters(codec="utf-8")))
SPACES = [" secret", "\tsecret", "\fsecret", "  two", " ", "a ", "=", "a\\ b", "\\u0041", "\n# no comment"]


@given(TEXTS, TEXTS)
@example("a key", "of text")
def test_any_text_is_read_as_it_was_written(key: str, text: str) -> None:
    """Java's Properties reads a file as ISO 8859-1; Tidelog reads it as UTF-8."""
    for written in (text, *(space + text for space in SPACES)):
        file = format_properties({key: written, "last": "1"}).encode()
        for encoding in ("iso-8859-1", "utf-8"):
            assert parse_properties(file.decode(encoding)) == {key: written, "last": "1"}


def test_plain_values_stay_as_a_person_reads_them() -> None:
    given = {"listeners": "PLAINTEXT://:9092", "super.users": "User:ann;User:bob", "a.b": "two words = #1!"}
    assert format_properties(given) == "".join(f"{key}={text}\n" for key, text in given.items())


def test_half_of_a_character_is_not_written() -> None:
    with pytest.raises(UnicodeEncodeError):
        format_properties({"password": "\ud83c"})


def leave_readable(path: Path) -> None:
    path.write_text("earlier")
    path.chmod(0o644)


def leave_second_name(path: Path) -> None:
    leave_readable(path)
    os.link(path, path.with_name("second"))


def leave_symbolic_link(path: Path) -> None:
    leave_readable(path.with_name("second"))
    path.symlink_to("second")


def leave_nothing(path: Path) -> None:
    assert not path.exists()


@pytest.mark.parametrize("leave", [leave_nothing, leave_readable, leave_second_name, leave_symbolic_link])
def test_only_the_owner_can_read_a_secret_whatever_was_there(tmp_path: Path, leave: Callable[[Path], None]) -> None:
    path = tmp_path / "server.properties"
    leave(path)
    readers = [os.open(one, os.O_RDONLY) for one in tmp_path.iterdir()]
    write_privately(path, "password=secret")
    assert path.read_text() == "password=secret"
    assert path.lstat().st_mode == stat.S_IFREG | 0o600
    assert {one.name: one.read_text() for one in tmp_path.glob("second")}.get("second", "earlier") == "earlier"
    for reader in readers:
        assert os.read(reader, 99) == b"earlier"
        os.close(reader)
