"""A Kerberos realm for tests: MIT Kerberos' KDC on this machine, with principals, keytabs and a client's environment.

Without the KDC its tests are skipped, except in CI, which installs it. Without the package ``gssapi`` they are skipped
also in CI: CI uses Debian's compiled package, which exists only for Debian's Python (``make kerberos`` compiles one).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.broker import free_port
from tests.support.requirements import missing

REALM = "TIDE.TEST"
INSTALL = (
    "apt-get install krb5-kdc krb5-admin-server krb5-user libkrb5-dev libsasl2-modules-gssapi-mit; pip install gssapi"
)
TOOLS = ("krb5kdc", "kadmin.local", "kdb5_util", "kinit")
SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Directories of the KDC's programs; a user's PATH often lacks the first."""
START_S = 60

KRB5_CONF = """
[libdefaults]
  default_realm = {realm}
  dns_lookup_realm = false
  dns_lookup_kdc = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
[realms]
  {realm} = {{
    kdc = 127.0.0.1:{port}
  }}
  OTHER.TEST = {{
    kdc = 127.0.0.1:{port}
  }}
"""
KDC_CONF = """
[kdcdefaults]
  kdc_listen = 127.0.0.1:{port}
  kdc_tcp_listen = 127.0.0.1:{port}
[realms]
  {realm} = {{
    database_name = {directory}/principals
    key_stash_file = {directory}/stash
    acl_file = {directory}/acl
    supported_enctypes = aes256-cts:normal
  }}
[logging]
  kdc = FILE:{directory}/kdc.log
"""


def require_kdc() -> None:
    """Skip the test if the KDC or the package ``gssapi`` is missing."""
    lacking = [tool for tool in TOOLS if shutil.which(tool, path=SYSTEM) is None]
    if lacking:
        missing(", ".join(lacking), INSTALL)
    if find_spec("gssapi") is None:
        pytest.skip(f"gssapi is missing; install it with: {INSTALL}")


class Realm:
    """The realm, as a context manager; programs that use it get ``environment``."""

    def __init__(self, directory: Path) -> None:
        require_kdc()
        self.directory = directory
        self._kdc: subprocess.Popen[bytes] | None = None
        self.krb5_conf = directory / "krb5.conf"
        port = free_port()
        self.krb5_conf.write_text(KRB5_CONF.format(realm=REALM, port=port))
        (directory / "kdc.conf").write_text(KDC_CONF.format(realm=REALM, port=port, directory=directory))
        self.environment = {
            **os.environ,
            "KRB5_CONFIG": str(self.krb5_conf),
            "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
            "KRB5RCACHENAME": f"file2:{directory}/replay",
        }

    def __enter__(self) -> Realm:
        self._run("kdb5_util", "create", "-s", "-P", "master")
        kdc = subprocess.Popen(
            [str(shutil.which("krb5kdc", path=SYSTEM)), "-n"],
            env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._kdc = kdc
        watchdog = threading.Timer(START_S, kdc.kill)
        watchdog.start()
        assert kdc.stdout is not None
        said = kdc.stdout.readline()
        watchdog.cancel()
        if b"starting" not in said:
            self.__exit__()
            raise AssertionError(f"the KDC did not start: {said!r}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._kdc is not None:
            self._kdc.kill()
            self._kdc.communicate()

    def add(self, principal: str) -> Path:
        """Add a principal with a key of its own, and return the keytab that has it. A further call changes the key."""
        keytab = self.directory / f"{principal.replace('/', '-')}.keytab"
        self._run("kadmin.local", "-q", f"addprinc -randkey {principal}")
        self._run("kadmin.local", "-q", f"ktadd -k {keytab} {principal}")
        assert keytab.exists()
        return keytab

    def ticket(self, principal: str, keytab: Path) -> dict[str, str]:
        """Get a ticket for the principal; return the environment of a client with this ticket."""
        cache = {**self.environment, "KRB5CCNAME": f"FILE:{keytab}.cache"}
        self._run("kinit", "-k", "-t", str(keytab), principal, environment=cache)
        return cache

    def _run(self, tool: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
        done = subprocess.run(
            [str(shutil.which(tool, path=SYSTEM)), *arguments],
            env=environment or self.environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
