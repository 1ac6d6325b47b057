"""The machine's own keytab, which MIT Kerberos takes where a JAAS text names none.

    KRB5_KTNAME, else default_keytab_name in [libdefaults] of krb5.conf, else /etc/krb5.keytab

``krb5.conf`` is the first file of KRB5_CONFIG that says it. Files that these include are not read.
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
    """Find the path of the machine's keytab; None where it is no file. Reads krb5.conf."""
    name = environment.get("KRB5_KTNAME") or _configured(environment.get("KRB5_CONFIG") or USUAL_CONFIG) or USUAL_KEYTAB
    match = _FILE.fullmatch(name)
    return None if match is None else match["path"]


def _configured(paths: str) -> str | None:
    """Read the keytab's name from the first of these files that says it."""
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
