"""Loader of kernels for a serving process that does not stall the event loop.

    thread (daemon):  numba installed?  no  -> one log line, the reference stays
                      child: python -m tidelog.log.records.compile MODULE        compiles into the cache on disk, at low
                      priority import MODULE                                      loads from that cache: no compilation
                      here on_loaded(module)

Kernels beside the event loop go another way, because importing numba is dear and has stalled requests: the child leaves
an image of their machine code (``tidelog.log.records.machine_code``), and nothing but that is loaded. Where there is no
image (another processor, executable pages refused) numba serves them as it does the others.

The child and this process must agree on the cache's directory. ``NUMBA_CACHE_DIR`` wins; else numba uses
``__pycache__`` beside the module or the user's cache directory; where neither can be written (read-only root, no home)
a private directory below the system's temporary one is set for both.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tidelog.log.records.quiet_import import quiet_import

if TYPE_CHECKING:
    from tidelog.log.records.array_kernels import ArrayKernels, KernelGroup
    from tidelog.log.records.machine_code import Image

logger = logging.getLogger(__name__)

#: Compilation takes 5 to 20 s on a busy machine; a child that takes this long will not finish.
COMPILE_TIMEOUT_SECONDS = 300
#: The only processor whose object code ``tidelog.log.records.machine_code`` reads.
IMAGE_MACHINE = "x86_64"
_HERE = Path(__file__).resolve().parent
_FORMAT_SOURCES = (_HERE / "machine_code.py", _HERE / "array_kernels.py")
#: The directory that ``tidelog`` is imported from.
ROOT = Path(__file__).absolute().parents[3]


def load_in_background(module: str, on_loaded: Callable[[ModuleType], None]) -> threading.Thread:
    """Compile ``module`` in a child, import it in a thread, call ``on_loaded`` with it there. Returns the thread.

    Where numba is missing or compilation fails one line is logged and ``on_loaded`` is never called.
    """
    thread = threading.Thread(target=_load, args=(module, on_loaded), name=f"load {module}", daemon=True)
    thread.start()
    return thread


def load_array_kernels(
    group: KernelGroup, on_loaded: Callable[[ArrayKernels], None], on_fallback: Callable[[ModuleType], None]
) -> threading.Thread:
    """As :func:`load_in_background` for a group of kernels: the image of their code, or else ``group.fallback``."""
    thread = threading.Thread(
        target=_load_group, args=(group, on_loaded, on_fallback), name=f"load {group.name}", daemon=True
    )
    thread.start()
    return thread


def _load_group(
    group: KernelGroup, on_loaded: Callable[[ArrayKernels], None], on_fallback: Callable[[ModuleType], None]
) -> None:
    from tidelog.log.records.array_kernels import ArrayKernels

    def load(image: Image) -> None:
        kernels = ArrayKernels(group, image)
        logger.info("kernels %s loaded as machine code", group.name)
        on_loaded(kernels)

    if not _use_image(group.module, group.name, group.sources, load):
        _load(group.fallback, on_fallback)


def _use_image(module: str, name: str, sources: tuple[Path, ...], load: Callable[[Image], None]) -> bool:
    """Give ``load`` the image that a child importing ``module`` leaves; False where that cannot be."""
    if platform.machine() != IMAGE_MACHINE or importlib.util.find_spec("numba") is None:
        return False
    from tidelog.log.records.machine_code import ImageError, read_image

    path = image_path(name, sources)
    if not path.exists():
        if not (_can_compile(module, _HERE) and _compile_in_child(module)):
            return False
        path = image_path(name, sources)
    try:
        load(read_image(path))
    except (ImageError, OSError, KeyError) as error:
        logger.info("no machine code from %s, numba serves the kernels: %s", path, error)
        return False
    return True


def image_path(name: str, sources: tuple[Path, ...]) -> Path:
    """Where a group's image lies: beside what numba caches for this source and processor."""
    return cache_directory() / image_name(name, sources)


def image_name(group: str, sources: tuple[Path, ...]) -> str:
    """The file name of an image made from today's ``sources``, by the installed numba, for this processor."""
    versions = [Path(spec.origin).with_name("_version.py") for name in ("numba", "llvmlite")
                if (spec := importlib.util.find_spec(name)) is not None and spec.origin]  # fmt: skip
    paths = [*_FORMAT_SOURCES, *sources, *versions]
    identity = b"".join([path.read_bytes() for path in paths if path.exists()] + [_processor()])
    return f"{group}-{len(identity)}-{zlib.crc32(identity):08x}{zlib.adler32(identity):08x}.image"


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return os.uname().machine.encode()
    return b"".join(line for line in dict.fromkeys(lines) if line.startswith((b"model name", b"flags")))


def cache_directory() -> Path:
    """Where images lie, and below it what numba caches."""
    directory = os.environ.get("NUMBA_CACHE_DIR")
    if directory:
        return Path(directory)
    beside = _HERE / "__pycache__"
    return beside if _is_writable(beside) else _user_cache()


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "numba"


def _load(module: str, on_loaded: Callable[[ModuleType], None]) -> None:
    if importlib.util.find_spec("numba") is None:
        logger.info("numba is not installed: record-level work stays in plain Python (pip install 'tidelog[kernels]')")
        return
    if not (_can_compile(module, ROOT.joinpath(*module.split(".")).parent) and _compile_in_child(module)):
        return
    try:
        with quiet_import("numpy", "llvmlite"):
            loaded = importlib.import_module(module)
    except (ImportError, RuntimeError, OSError) as error:
        logger.warning("kernels %s do not load, record-level work stays in plain Python: %s", module, error)
        return
    logger.info("kernels %s loaded", module)
    on_loaded(loaded)


def _can_compile(module: str, directory: Path) -> bool:
    """Whether there is, or can be made, a directory for what is compiled; a log line where not (no writable /tmp)."""
    try:
        ensure_cache_directory(directory)
    except OSError as error:
        logger.warning("kernels %s are not compiled, record-level work stays in plain Python: %s", module, error)
        return False
    return True


def _compile_in_child(module: str) -> bool:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "tidelog.log.records.compile", module]
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMPILE_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("kernels %s do not compile, record-level work stays in plain Python: %s", module, error)
        return False
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
        logger.warning("kernels %s do not compile, record-level work stays in plain Python: %s", module, last)
    return done.returncode == 0


def ensure_cache_directory(module_directory: Path) -> None:
    """Set ``NUMBA_CACHE_DIR`` when numba would find no directory to write of its own. Raises OSError.

    numba ignores a cache it cannot write to, so a read-only one (shipped in a container image) is copied first.
    """
    shipped = os.environ.get("NUMBA_CACHE_DIR")
    if shipped and (_is_writable(Path(shipped)) or not Path(shipped).is_dir()):
        return
    if shipped:
        directory = private_temporary_directory()
        shutil.copytree(shipped, directory, dirs_exist_ok=True)
        os.environ["NUMBA_CACHE_DIR"] = str(directory)
        return
    if _is_writable(module_directory / "__pycache__") or _is_writable(_user_cache()):
        return
    os.environ["NUMBA_CACHE_DIR"] = str(private_temporary_directory())


def _is_writable(directory: Path) -> bool:
    """Whether ``directory``, or the nearest parent there is, lets us write."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return os.access(directory, os.W_OK)


def private_temporary_directory() -> Path:
    """Create a directory of this user alone: the cache holds pickles, so no other user may write there."""
    directory = Path(tempfile.gettempdir(), f"tidelog-kernels-{os.getuid()}")
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
            return directory
    except OSError as error:
        logger.debug("cannot use %s: %s", directory, error)
    return Path(tempfile.mkdtemp(prefix="tidelog-kernels-"))
