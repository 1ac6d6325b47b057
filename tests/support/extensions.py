"""Compiled modules of the checkout, and the digests of the sources that ``setup.py`` has compiled."""

from __future__ import annotations

import hashlib
import json
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
SUFFIX = EXTENSION_SUFFIXES[0]


def stale_modules(root: Path = ROOT) -> list[str]:
    """List the compiled modules whose source has changed since they were compiled; Python would still import them."""
    stamp = root / "build" / "extensions.json"
    built = json.loads(stamp.read_text()) if stamp.exists() else {}
    names = [path.relative_to(root).as_posix() for path in _sources(root) if path.with_suffix(SUFFIX).exists()]
    return [name for name in names if not _is_current(root, built.get(_module(name), {}))]


def _sources(root: Path) -> list[Path]:
    packages = ("protocol", "log", "cleaner", "broker", "pipeline", "tidelog")
    compiled = [path for package in packages for path in (root / package).rglob(f"*{SUFFIX}")]
    return sorted(path.with_name(path.name.removesuffix(SUFFIX) + ".py") for path in compiled)


def _module(name: str) -> str:
    return "tidelog." + name.removeprefix("tidelog/").removesuffix(".py").replace("/", ".")


def _is_current(root: Path, digests: dict[str, str]) -> bool:
    return bool(digests) and all(_digest(root / path) == digest for path, digest in digests.items())


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def uncompiled(module: ModuleType) -> ModuleType:
    """Import a module of ``extensions.txt`` as plain Python, whether or not it is compiled."""
    assert module.__file__
    path = Path(module.__file__)
    spec = spec_from_file_location(f"{module.__name__}_uncompiled", path.with_name(path.name.split(".")[0] + ".py"))
    assert spec
    assert spec.loader
    plain = module_from_spec(spec)
    spec.loader.exec_module(plain)
    assert not plain.IS_COMPILED
    return plain
