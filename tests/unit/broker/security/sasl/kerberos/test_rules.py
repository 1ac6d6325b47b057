"""Rules that map Kerberos principals to user names. Source of the cases: Kafka's KerberosRuleTest and
KerberosNameTest."""

from __future__ import annotations

import pytest

from tidelog.broker.security.sasl.kerberos.rules import KerberosRules, NoRuleAppliesError
from tidelog.protocol.config_def import ConfigDef, ConfigError, ConfigKey, ConfigType

REALM = "REALM.COM"
RULES = r"RULE:[1:$1](App\..*)s/App\.(.*)/$1/g,RULE:[2:$1](App\..*)s/App\.(.*)/$1/g,DEFAULT"


def rules_of(text: str, realm: str = REALM) -> KerberosRules:
    """Build rules in the form the configuration gives them: a list that was split at commas."""
    return KerberosRules(ConfigDef([ConfigKey("rules", ConfigType.LIST)]).parse({"rules": text})["rules"], realm)


@pytest.mark.parametrize(
    ("rules", "principal", "user"),
    [
        (RULES, "App.service-name/example.com@REALM.COM", "service-name"),
        (RULES, "App.service-name@REALM.COM", "service-name"),
        (RULES, "user/host@REALM.COM", "user"),
        ("DEFAULT", "ann@REALM.COM", "ann"),
        ("RULE:[1:$1]/L,RULE:[2:$1]/L", "User@REALM.COM", "user"),
        ("RULE:[1:$1]/U,RULE:[2:$1]/U", "User/Host@REALM.COM", "USER"),
        ("RULE:[2:$1$2](.*)s/^user/me/", "useruser/host@REALM.COM", "meuserhost"),
        ("RULE:[1:$1]s/a/b/", "banana@REALM.COM", "bbnana"),
        ("RULE:[1:$1]s/a/b/g", "banana@REALM.COM", "bbnbnb"),
        (r"RULE:[1:$1.$0](.*\.OTHER\.COM)s/\..*//,DEFAULT", "ann@OTHER.COM", "ann"),
        ("RULE:[2:$2-$1]", "user/host@REALM.COM", "host-user"),
        ("RULE:[1:$1](ann)s/(a)(n+)/$2$1/,DEFAULT", "ann@REALM.COM", "nna"),
    ],
)
def test_the_first_rule_that_applies_names_the_user(rules: str, principal: str, user: str) -> None:
    assert rules_of(rules).name_of(principal) == user


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", "ann@OTHER.COM"),
        ("RULE:[2:$1]", "ann@REALM.COM"),
        ("RULE:[1:$1](bob)", "ann@REALM.COM"),
        ("RULE:[1:$1](an)", "ann@REALM.COM"),  # the whole of it has to match
        ("RULE:[1:$1@$0]", "ann@REALM.COM"),
        ("RULE:[1:$1]s/.*//g", "ann@REALM.COM"),
        ("", "ann@REALM.COM"),
        ("DEFAULT", "ann"),
        ("DEFAULT", r"a\@nn@REALM.COM"),
        ("DEFAULT", "a/b/c@REALM.COM"),
        ("DEFAULT", ""),
    ],
)
def test_a_principal_that_no_rule_is_for_is_refused(rules: str, principal: str) -> None:
    with pytest.raises(NoRuleAppliesError):
        rules_of(rules).name_of(principal)


def test_without_a_default_realm_default_is_for_no_realm() -> None:
    with pytest.raises(NoRuleAppliesError):
        rules_of("DEFAULT", realm="").name_of("ann@REALM.COM")


@pytest.mark.parametrize(
    "rules",
    [
        "default", "RULE", "RULE:[1:$1", "RULE:[:$1]", "RULE:[1:$2]", "RULE:[1:$]", "RULE:[1:$1](", "RULE:[1:$1]s/a/b",
        "RULE:[1:$1]/X", "DEFAULT more", "RULE:[1:$1](?=a)", "RULE:[1:$1]((?=a)", r"RULE:[1:$1]s/(a)\1/b/",
    ],
)  # fmt: skip
def test_a_rule_that_cannot_be_read_refuses_the_start(rules: str) -> None:
    with pytest.raises(ConfigError, match="principal\\.to\\.local\\.rules"):
        rules_of(rules)
