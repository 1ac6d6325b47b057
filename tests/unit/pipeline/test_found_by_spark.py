"""PySpark finds the source by listing modules: only those of directories on the path, not those of an import hook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_installed_package_is_listed(tmp_path: Path) -> None:
    code = "import pkgutil; print(*(module.name for module in pkgutil.iter_modules()), sep='\\n')"
    listed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "pyspark_tidelog" in listed.stdout.split()
