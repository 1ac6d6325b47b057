"""Wheels built from the checkout: their contents in an empty directory, where Tidelog runs, compiled or not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from tests.support.requirements import missing

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "data", "__pycache__", "*.egg-info", ".*_cache", "*.so"
)
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
CACHE = {name: value for name, value in os.environ.items() if name == "CYTHON_CACHE_DIR"}
"""In CI Cython finds there what it wrote for ``make extensions``. It looks for it by the contents of all files that it
would read: if one is missing in the source distribution, it translates, and fails for the missing file."""
NO_COMPILER = {"PATH": os.path.dirname(sys.executable), **CACHE}
BROKEN_COMPILER = {**os.environ, "CC": "/bin/false"}
REQUIRED = {"TIDELOG_REQUIRE_EXTENSIONS": "1"}
CYTHON_C = "cython"
"""What Cython wrote, below ``build``."""
HAS_CACHE = os.environ.get("CC", "").startswith("ccache ")
"""In CI ccache has the objects that ``make extensions`` compiled of the same C with the same flags."""
COMPILER = dict(os.environ) if HAS_CACHE else {**os.environ, "CFLAGS": "-O0"}
"""Without a cache the modules are compiled without optimization, which is quick."""


def run(command: list[str], directory: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    try:
        import Cython  # noqa: F401
    except ImportError:
        missing("Cython", "pip install 'tidelog[build]'")
    directory = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT, directory / "checkout", symlinks=True, ignore=LEFT_OUT)
    done = run([sys.executable, "setup.py", "--quiet", "sdist"], directory / "checkout", dict(os.environ))
    assert done.returncode == 0, done.stderr
    (archive,) = (directory / "checkout" / "dist").glob("*.tar.gz")
    # Not by tarfile: extractall() knows a filter from CPython 3.11.4 on, and asks for one from 3.12 on.
    (directory / "unpacked").mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", directory / "unpacked"], check=True)
    (unpacked,) = (directory / "unpacked").iterdir()
    return unpacked


def build(source: Path, environment: dict[str, str]) -> tuple[Path | None, str]:
    """Build the wheel from the source. Returns the wheel, None if there is none, and the output.

    What a compiler made is made again. Cython's C, which no compiler changes, stays from the first build.
    """
    for made in (source / "build").glob("*"):
        if made.name != CYTHON_C:
            shutil.rmtree(made)
    wheels = source.parent / f"wheels-{len(list(source.parent.iterdir()))}"
    command = [*PIP[:-2], "wheel", "--verbose", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), "."]
    done = run(command, source, {**environment, "TIDELOG_REQUIRE_EXTENSIONS": "0", **environment})
    built = list(wheels.glob("*.whl"))
    return (built[0] if built else None), done.stdout + done.stderr


def leave_build_out(directory: str, names: list[str]) -> list[str]:
    """Return the names of a directory that are left out of a copy: below ``build`` all but Cython's C."""
    return [name for name in names if Path(directory).name == "build" and name != CYTHON_C]


def install(wheel: Path | None, target: Path) -> Path:
    assert wheel is not None
    command = [*PIP, "install", "--no-deps", "--no-compile", "--target", str(target), str(wheel)]
    done = run(command, target.parent, dict(os.environ))
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def installed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which a compiled wheel is installed without its dependencies."""
    wheel, output = build(source, {**COMPILER, **REQUIRED})
    assert wheel is not None, output
    assert "none-any" not in wheel.name
    assert "compiled: yes" in output
    return install(wheel, tmp_path_factory.mktemp("compiled") / "site")


@pytest.fixture(scope="module")
def uncompiled(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which a wheel is installed that was built without a compiler."""
    wheel, output = build(source, NO_COMPILER)
    assert wheel is not None, output
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "compiled: no" in output
    return install(wheel, tmp_path_factory.mktemp("plain") / "site")


def test_two_packages_and_no_others_are_installed(installed: Path) -> None:
    names = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"tidelog", "pyspark_tidelog", "bin"}


def test_files_are_installed_not_links(installed: Path) -> None:
    assert [path for path in installed.rglob("*") if path.is_symlink()] == []
    modules = {path.relative_to(installed / "tidelog") for path in (installed / "tidelog" / "broker").rglob("*.py")}
    here = {path.relative_to(ROOT) for path in (ROOT / "broker").rglob("*.py")}
    assert modules == here


@pytest.mark.parametrize(("site", "is_compiled"), [("installed", "yes"), ("uncompiled", "no")])
def test_the_command_runs_from_there(
    site: str, is_compiled: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    directory = request.getfixturevalue(site)
    (tmp_path / "log.py").write_text("raise ImportError('the module of the user')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(directory)])}
    done = run([sys.executable, str(directory / "bin" / "tidelog"), "version"], tmp_path, environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tidelog ")
    assert f"compiled: {is_compiled}\n" in done.stdout
    assert bool(list(directory.rglob("tidelog/**/*.so"))) == (is_compiled == "yes")


ROUTINES = """
import sys
sys.modules["cython"] = None  # as where Cython is not installed
sys.path.insert(0, sys.argv[1])
from tidelog.log.records import engine
from tidelog.log.recovery import scan
from tidelog.protocol.errors import InvalidRecordError
from tidelog.protocol.record.record_batch import Record, build_batch
batch = bytes(build_batch([Record(n, 1000 + n, b"key", b"value" * 40) for n in range(50)]))
print(engine.check_section(batch[61:], 50), engine.first_at_or_after(batch[61:], 50, 7, 0))
try:
    engine.check_section(batch[61:-1], 50)
except InvalidRecordError as error:
    print(error)
walk = scan.SegmentScan(0, 100)
walk.offset_room = walk.time_room = 100
print(walk.scan(batch * 2, 0, 2 * len(batch), 0), walk.consumed, walk.next_offset, walk.is_stopped)
"""


def test_both_give_equal_results(installed: Path, uncompiled: Path, tmp_path: Path) -> None:
    output = []
    for directory in (installed, uncompiled):
        done = run([sys.executable, "-c", ROUTINES, str(directory)], tmp_path, dict(os.environ))
        assert done.returncode == 0, done.stderr
        output.append(done.stdout)
    assert output[0] == output[1]


@pytest.mark.parametrize("compiler", [NO_COMPILER, BROKEN_COMPILER], ids=["none", "broken"])
def test_extensions_can_be_required(source: Path, compiler: dict[str, str]) -> None:
    wheel, output = build(source, {**compiler, **REQUIRED})
    assert wheel is None
    assert "compiled: no" not in output


@pytest.mark.usefixtures("installed")  # the source has Cython's C then, in any order of the tests
def test_a_compiler_that_fails_leaves_nothing_of_an_earlier_build(source: Path, tmp_path: Path) -> None:
    here = shutil.copytree(source, tmp_path / "again", ignore=leave_build_out)
    folder = f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    earlier = here / "build" / folder / f"tidelog/log/records/section_walk{EXTENSION_SUFFIXES[0]}"
    earlier.parent.mkdir(parents=True)
    earlier.touch()
    os.utime(earlier, (0, 0))
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path / "wheels"), "."]
    done = run(command, here, {**BROKEN_COMPILER, "TIDELOG_REQUIRE_EXTENSIONS": "0"})
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
