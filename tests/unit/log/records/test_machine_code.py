"""Machine code taken out of an object and run: what is refused, and that an image survives its file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidelog.log.records.machine_code import Image, ImageError, LoadedImage, extract, merge, read_image, write_image

SMALL = Image(b"\xc3" + bytes(15), ((8, 0),), {"return": 0})


def test_an_image_survives_its_file(tmp_path: Path) -> None:
    write_image(SMALL, tmp_path / "image")
    assert read_image(tmp_path / "image") == SMALL
    assert [path.name for path in tmp_path.iterdir()] == ["image"]


def test_addresses_are_filled_in() -> None:
    loaded = LoadedImage(SMALL)
    assert loaded._pages[8:16] == loaded.address("return").to_bytes(8, "little")
    with pytest.raises(KeyError):
        loaded.address("another")


def test_images_become_one() -> None:
    both = merge([SMALL, Image(SMALL.code, SMALL.relocations, {"other": 0})])
    assert both.entries == {"return": 0, "other": 64}
    assert both.relocations == ((8, 0), (72, 64))


@pytest.mark.parametrize("data", [b"", b"\x7fELF\x02\x01" + bytes(58), b"MZ" + bytes(62)])
def test_another_machines_object_is_refused(data: bytes) -> None:
    with pytest.raises(ImageError, match="not an x86-64 object"):
        extract(data, {})


def test_a_file_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "image"
    write_image(SMALL, path)
    path.chmod(0o666)
    with pytest.raises(ImageError, match="another user"):
        read_image(path)


@pytest.mark.parametrize("size", [0, 10, 30, 79])
def test_a_cut_file_is_refused(size: int, tmp_path: Path) -> None:
    path = tmp_path / "image"
    write_image(SMALL, path)
    os.truncate(path, size)
    with pytest.raises(ImageError, match="damaged"):
        read_image(path)


@pytest.mark.parametrize("relocation", [(9, 0), (0, 17)])
def test_a_relocation_outside_of_the_code_is_refused(relocation: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "image"
    write_image(SMALL._replace(relocations=(relocation,)), path)
    with pytest.raises(ImageError, match="damaged"):
        read_image(path)


def test_code_that_calls_out_is_refused() -> None:
    """A kernel that may raise needs the interpreter: it cannot leave numba."""
    numba = pytest.importorskip("numba")
    raising = numba.njit("int64(int64)")(_raise)
    compiled = next(iter(raising.overloads.values()))
    with pytest.raises(ImageError, match="missing"):
        extract(compiled.library._get_compiled_object(), {"raise": "another"})
    with pytest.raises(ImageError, match="calls"):
        extract(compiled.library._get_compiled_object(), {"raise": compiled.fndesc.llvm_cpython_wrapper_name})


def _raise(value: int) -> int:
    return 10 // value
