"""Keytab of the machine, which MIT Kerberos uses if a JAAS text names none.

    KRB5_KTNAME, else default_keytab_name in [libdefaults] of krb5.conf, else /etc/krb5.keytab

``krb5.conf`` stands for the first file of KRB5_CONFIG that has the setting. Files that these include are not read.
Source: MIT's kt_default_name and its manual of krb5.conf.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

USUAL_CONFIG = "/etc/krb5.conf"
USUAL_KEYTAB = "FILE:/etc/krb5.keytab"
_SECTION = re.compile(r"^\[libdefaults\]\s*$(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"^\s*default_keytab_name\s*=\s*(\S+)", re.MULTILINE)
_FILE = re.compile(r"(?:(?:WR)?FILE:)?(?P<path>/.*)")


def system_keytab(environment: Mapping[str, str]) -> str | None:
    """Return the path of the machine's keytab, None if it is not a file. Reads krb5.conf."""
    name = (
        environment.get("KRB5_KTNAME")
        or _find_configured(environment.get("KRB5_CONFIG") or USUAL_CONFIG)
        or USUAL_KEYTAB
    )
    match = _FILE.fullmatch(name)
    return None if match is None else match["path"]


def _find_configured(paths: str) -> str | None:
    """Read the keytab's name from the first of these files that has it."""
    for path in paths.split(":"):
        try:
            text = Path(path).read_text(errors="replace")
        except OSError:
            continue
        for section in _SECTION.findall(text):
            match = _NAME.search(section)
            if match is not None:
                return match[1]
    return None
