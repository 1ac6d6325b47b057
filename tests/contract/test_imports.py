"""Importing a module writes nothing: no file, no directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("protocol", "log", "cleaner", "broker", "tidelog", "pipeline")

PROGRAM = """
import importlib, os, sys

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
           "os.chown", "shutil.copytree", "shutil.move", "tempfile.mkstemp",
           "tempfile.mkdtemp", "subprocess.Popen", "socket.bind", "sqlite3.connect"}
met = []

def watch(event, arguments):
    if event == "open":
        path, _, flags = arguments
        if flags & WRITING and not str(path).startswith("/dev/"):
            met.append(f"opens {path} to write")
    elif event in CHANGES:
        met.append(f"{event} {arguments[:2]}")

sys.addaudithook(watch)
for name in sys.argv[1:]:
    met.clear()
    importlib.import_module(name)
    if met:
        print(f"{name}: {'; '.join(met[:3])}")
"""


def modules() -> list[str]:
    """List every module, by the name it is imported by."""
    found = []
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if path.is_symlink() or any((ROOT / parent).is_symlink() for parent in path.relative_to(ROOT).parents):
                continue
            name = ".".join(parts if package == "tidelog" else ("tidelog", *parts)).removesuffix(".__init__")
            if not name.endswith("__main__"):
                found.append(name)
    return found


@pytest.mark.parametrize("package", PRODUCT)
def test_importing_writes_nothing(package: str) -> None:
    prefix = "tidelog." if package == "tidelog" else f"tidelog.{package}"
    others = tuple(f"tidelog.{name}" for name in PRODUCT if name != "tidelog")
    chosen = [name for name in modules() if name.startswith(prefix)]
    if package == "tidelog":
        chosen = [name for name in chosen if not name.startswith(others)]
    assert len(chosen) > 10
    command = [sys.executable, "-B", "-c", PROGRAM, *chosen]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_all_handlers_together_import_nothing_of_the_authorizer() -> None:
    """A broker without ``authorizer.class.name`` pays nothing for it."""
    program = (
        "import importlib, sys\n"
        "from tidelog.broker import startup\n"
        "from tidelog.broker.requests.registry import REGISTRY\n"
        "for entry in REGISTRY.values():\n"
        "    importlib.import_module(entry.module)\n"
        "print([name for name in sys.modules if 'security.authorization' in name])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_broker_of_plain_listeners_imports_nothing_of_tls_and_sasl() -> None:
    """Neither its handlers nor what accepts its connections."""
    program = (
        "import importlib, sys\n"
        "from tidelog.broker import server\n"
        "from tidelog.broker.requests.registry import REGISTRY\n"
        "for entry in REGISTRY.values():\n"
        "    importlib.import_module(entry.module)\n"
        "print([name for name in sys.modules if name == 'tidelog.broker.network.authentication'\n"
        "       or name.startswith(('tidelog.broker.security.tls', 'tidelog.broker.security.sasl'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
