"""Loading kernels: compiled in a child, loaded in a thread, and one log line where that cannot be."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

from tidelog.log.find.engine.kernel_group import FIND
from tidelog.log.records import compile as compile_module
from tidelog.log.records import kernel_loader
from tidelog.log.records.array_kernels import ArrayKernels, compile_group
from tidelog.log.records.machine_code import write_image

MODULE = "tidelog.log.records.reference"


@pytest.fixture(autouse=True)
def no_cache_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("tidelog.log.records.kernel_cache")  # has found its directory now, and stays with it
    monkeypatch.setenv("NUMBA_CACHE_DIR", "kept")


def load(module: str) -> list[ModuleType]:
    loaded: list[ModuleType] = []
    kernel_loader.load_in_background(module, loaded.append).join()
    return loaded


def answer_child(monkeypatch: pytest.MonkeyPatch, returncode: int, stderr: bytes = b"") -> list[list[str]]:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, returncode, b"", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_the_module_is_compiled_in_a_child_before_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = answer_child(monkeypatch, 0)
    (module,) = load(MODULE)
    assert module.__name__ == MODULE
    assert [command[1:] for command in commands] == [["-m", "tidelog.log.records.compile", MODULE]]


def test_a_failed_compilation_is_one_log_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answer_child(monkeypatch, 1, b"Traceback ...\nImportError: no LLVM")
    assert load(MODULE) == []
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"kernels {MODULE} do not compile, record-level work stays in plain Python: ImportError: no LLVM"
    ]


def test_a_child_that_cannot_start_is_one_log_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert load(MODULE) == []
    assert "no more processes" in caplog.text


def test_a_module_that_does_not_import_is_one_log_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answer_child(monkeypatch, 0)
    assert load("log.records.missing") == []
    assert "do not load" in caplog.text


def test_without_numba_the_reference_stays(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert load(MODULE) == []
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert "numba is not installed" in caplog.text


def test_the_users_own_cache_directory_wins(tmp_path: Path) -> None:
    kernel_loader.ensure_cache_directory(tmp_path)
    assert os.environ["NUMBA_CACHE_DIR"] == "kept"


def test_a_read_only_shipped_cache_is_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shipped = tmp_path / "shipped" / "records_1234"
    shipped.mkdir(parents=True)
    (shipped / "kernels.nbi").write_text("index")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "shipped"))
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    kernel_loader.ensure_cache_directory(tmp_path)
    directory = Path(os.environ["NUMBA_CACHE_DIR"])
    assert directory != tmp_path / "shipped"
    assert (directory / "records_1234" / "kernels.nbi").read_text() == "index"


def test_a_writable_directory_beside_the_module_needs_no_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    kernel_loader.ensure_cache_directory(tmp_path)
    assert "NUMBA_CACHE_DIR" not in os.environ


def test_a_read_only_installation_caches_in_a_private_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    kernel_loader.ensure_cache_directory(tmp_path)
    directory = Path(os.environ["NUMBA_CACHE_DIR"])
    assert directory.parent == tmp_path
    assert directory.stat().st_mode & 0o077 == 0


def test_a_directory_others_may_write_is_not_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cache holds pickles: a process that writes there runs code here."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: f"{tmp_path}/{prefix}fresh")
    planted = tmp_path / f"tidelog-kernels-{os.getuid()}"
    planted.mkdir(mode=0o777)
    planted.chmod(0o777)
    assert kernel_loader.private_temporary_directory().name == "tidelog-kernels-fresh"
    planted.rmdir()
    planted.write_text("a file")
    assert kernel_loader.private_temporary_directory().name == "tidelog-kernels-fresh"


def test_compile_imports_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(os, "nice", lambda _: 0)
    everything = compile_module.broker_modules()
    monkeypatch.setattr(compile_module, "broker_modules", lambda: everything)
    monkeypatch.setattr(importlib, "import_module", imported.append)
    assert compile_module.main([]) == 0
    assert compile_module.main(["one", "two"]) == 0
    assert imported == [*everything, "one", "two"]


def test_without_numba_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert compile_module.main([]) == 0
    assert "numba is not installed" in capsys.readouterr().err


def test_all_that_a_broker_loads_is_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is handed to the loader stands in a group that is found, on processors with images and on others."""
    loaded = {FIND.module}
    assert {group.module for group in compile_module.groups()} == loaded
    monkeypatch.setattr(compile_module, "IMAGE_MACHINE", platform.machine())
    assert set(compile_module.broker_modules()) == loaded
    monkeypatch.setattr(compile_module, "IMAGE_MACHINE", "another")
    assert set(compile_module.broker_modules()) == {FIND.fallback}


def test_every_module_that_writes_an_image_is_of_a_group() -> None:
    paths = [
        path
        for package in ("log", "cleaner", "broker")
        for path in (kernel_loader.ROOT / "tidelog" / package).rglob("*.py")
    ]
    writing = {path.relative_to(kernel_loader.ROOT) for path in paths if "write_image(" in path.read_text()}
    writing.remove(Path("tidelog/log/records/machine_code.py"))
    modules = {group.module for group in compile_module.groups()}
    assert {".".join(path.with_suffix("").parts) for path in writing} == modules


def test_no_directory_to_compile_into_is_one_log_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_loader, "ensure_cache_directory", refuse_directory)
    assert load(MODULE) == []
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"kernels {MODULE} are not compiled, record-level work stays in plain Python: nowhere to write"
    ]


def refuse_directory(_: Path) -> None:
    raise OSError("nowhere to write")


def load_finder() -> tuple[list[object], list[object]]:
    """Return the kernels loaded from an image, and those that numba gave instead."""
    native: list[object] = []
    fallback: list[object] = []
    kernel_loader.load_array_kernels(FIND, native.append, fallback.append).join()
    return native, fallback


def test_kernels_over_arrays_come_from_their_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands = answer_child(monkeypatch, 0)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    finder = importlib.import_module("tidelog.log.find.engine.kernels")
    write_image(
        compile_group(FIND, {name: getattr(finder, name) for name in FIND.signatures}),
        kernel_loader.image_path(FIND.name, FIND.sources),
    )
    monkeypatch.setattr(kernel_loader, "ensure_cache_directory", refuse_directory)  # a read-only root and no /tmp
    ((kernels,), fallback) = load_finder()
    assert isinstance(kernels, ArrayKernels)
    assert fallback == commands == []


def test_without_a_usable_image_numba_serves_kernels_over_arrays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = answer_child(monkeypatch, 0)
    monkeypatch.setattr(kernel_loader, "ensure_cache_directory", lambda _: None)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    numba_face = importlib.import_module(FIND.fallback)
    assert load_finder() == ([], [numba_face]), "the child left none"
    assert [command[-1] for command in commands] == [FIND.module, FIND.fallback]
    kernel_loader.image_path(FIND.name, FIND.sources).write_bytes(b"TLKERN02")
    assert load_finder() == ([], [numba_face]), "damaged"
    monkeypatch.setattr(kernel_loader, "IMAGE_MACHINE", "another")
    assert load_finder() == ([], [numba_face]), "another processor"
