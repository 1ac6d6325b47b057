"""A TLS listener scanned by sslyze, compared with the configuration that Mozilla calls intermediate: ``make
tls-scan``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import TidelogProcess, free_port
from tests.support.certificates import Certificates
from tests.support.toolchains import installed

VERSION = "6.3.1"
"""Later ones may hold to a later configuration of Mozilla's."""
pytestmark = pytest.mark.skipif(not os.environ.get("TIDELOG_TLS_SCAN"), reason="make tls-scan")
OF_THE_TEST = r"\* certificate_path_validation: Certificate path validation failed for CN=localhost\."
"""The authority is one of the test's own."""
KEPT = r"\* tls_curves: TLS curves \{'(X448|secp521r1)', '(X448|secp521r1)'\} are supported, but should be rejected\."
"""Two curves that are stronger than those of the configuration: Python cannot choose among several."""


def sslyze(address: str, authority: Path) -> str:
    """Scan an address, and return what sslyze prints."""
    directory = installed(
        f"sslyze-{VERSION}",
        lambda target: [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target)), f"sslyze=={VERSION}",
        ],
    )  # fmt: skip
    words = ["--mozilla_config=intermediate", f"--certinfo_ca_file={authority}", address]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "sslyze", *words], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(directory)}, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.parametrize("key", ["EC", "RSA"])
def test_a_listener_fulfils_mozillas_intermediate_configuration(tmp_path: Path, key: str) -> None:
    certificates = Certificates(tmp_path)
    pair = certificates.authority.issue("scanned", "/CN=localhost", key=key)
    address = f"localhost:{free_port()}"
    texts = certificates.server_texts(ssl_keystore_location=str(pair.pem))
    listeners = {"listeners": f"PLAINTEXT://127.0.0.1:0,SSL://{address.replace('localhost', '127.0.0.1')}"}
    with TidelogProcess(tmp_path / "broker", listeners | texts):
        text = sslyze(address, certificates.authority.certificate)
    scan, _, verdict = text.partition("COMPLIANCE AGAINST TLS CONFIGURATION")
    assert 'Checking results against Mozilla\'s "intermediate" configuration' in verdict, text
    issues = re.findall(r"^ +(\* .*)$", verdict, re.MULTILINE)
    assert [issue for issue in issues if not re.fullmatch(f"{KEPT}|{OF_THE_TEST}", issue)] == [], text
    assert "VULNERABLE -" not in scan
