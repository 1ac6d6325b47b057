"""Rules for principals' names. Source of the cases: Kafka's SslPrincipalMapperTest."""

from __future__ import annotations

import pytest

from tidelog.broker.security.tls.principal_rules import NoRuleMatchesError, PrincipalRules
from tidelog.protocol.config_def import ConfigDef, ConfigError, ConfigKey, ConfigType

RULES = ", ".join([
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L",
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
    "DEFAULT",
])  # fmt: skip


def rules_of(text: str) -> PrincipalRules:
    """Build rules in the form the configuration gives them: a list that was split at commas."""
    return PrincipalRules(ConfigDef([ConfigKey("rules", ConfigType.LIST)]).parse({"rules": text})["rules"])


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,o=mycp,l=fulton,st=md,c=us", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_rule_that_matches_names_the_principal(subject: str, name: str) -> None:
    assert rules_of(RULES).name_of(subject) == name


@pytest.mark.parametrize(
    ("rule", "subject", "name"),
    [
        ("", "CN=a", "CN=a"),
        ("RULE:^CN=(.*?),.*$/$1/", "CN=a,O=b", "a"),
        ("RULE:^CN=(.*)$/User-$1/U", "CN=a", "USER-A"),
        (r"RULE:^CN=(.*)$/$1\/x\$1/", "CN=a", "a/x$1"),
        ("RULE:^CN=(.*)$/$2/", "CN=a", "$2"),
        ("RULE:^CN=(.*)$/$12/", "CN=a", "a2"),
        (r"RULE:^CN=(a\/b)$/$1/", "CN=a/b", "a/b"),
        ("RULE:.*/x/", "CN=a", "xx"),  # Java's replaceAll finds the empty end, too
    ],
)
def test_a_replacement_is_javas(rule: str, subject: str, name: str) -> None:
    assert rules_of(rule).name_of(subject) == name


def test_a_subject_that_no_rule_is_for_is_refused() -> None:
    with pytest.raises(NoRuleMatchesError):
        rules_of("RULE:^CN=(.*?),OU=x$/$1/").name_of("CN=a,OU=y")


def test_a_rule_is_for_the_whole_subject() -> None:
    with pytest.raises(NoRuleMatchesError):
        rules_of("RULE:CN=a/x/").name_of("CN=a,O=b")


@pytest.mark.parametrize(
    "text",
    ["DEFAUL", "DEFAULT/L", "RULE:abc", "RULE:CN=(.*)/$1/X", "RULE:CN=(.*)/$1/LU", "RULE:(/x/", "RULE:(?=CN).*/x/",
     r"RULE:(.)\1/x/", "DEFAULT RULE:a/b/"],
)  # fmt: skip
def test_a_rule_that_cannot_be_run_refuses_the_start(text: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        rules_of(text)


def test_a_hostile_subject_costs_linear_time() -> None:
    with pytest.raises(NoRuleMatchesError):
        rules_of("RULE:^(a+)+$/x/").name_of("a" * 5000 + "!")
