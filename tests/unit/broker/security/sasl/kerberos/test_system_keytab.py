"""The keytab of the machine: named by the environment, by krb5.conf, or the default one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.broker.security.sasl.kerberos.system_keytab import system_keytab

SETTINGS = """# [libdefaults] default_keytab_name = /commented
[realms]
  A = {
    default_keytab_name = /of/a/realm
  }
[libdefaults]
  default_realm = A
  default_keytab_name = FILE:/from/settings
[domain_realm]
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    (tmp_path / "empty.conf").write_text("[libdefaults]\n  default_realm = A\n[other]\n  default_keytab_name = /no\n")
    settings = tmp_path / "krb5.conf"
    settings.write_text(SETTINGS)
    return settings


@pytest.mark.parametrize(
    ("named", "path"),
    [
        ("FILE:/a/keytab", "/a/keytab"), ("WRFILE:/a/keytab", "/a/keytab"), ("/a/key tab", "/a/key tab"),
        ("MEMORY:a", None), ("DIR:/a", None), ("", "/from/settings"),
    ],
)  # fmt: skip
def test_the_environment_comes_first(settings: Path, named: str, path: str | None) -> None:
    assert system_keytab({"KRB5_KTNAME": named, "KRB5_CONFIG": str(settings)}) == path


def test_the_first_file_with_the_setting_is_used(settings: Path) -> None:
    empty, missing = settings.with_name("empty.conf"), settings.with_name("missing.conf")
    assert system_keytab({"KRB5_CONFIG": f"{missing}:{empty}:{settings}"}) == "/from/settings"


def test_without_variable_and_setting_the_keytab_is_etc_krb5_keytab(settings: Path) -> None:
    assert system_keytab({"KRB5_CONFIG": str(settings.with_name("empty.conf"))}) == "/etc/krb5.keytab"
