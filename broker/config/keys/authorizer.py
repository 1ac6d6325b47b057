"""Configuration keys of the authorizer."""

from __future__ import annotations

from tidelog.protocol.config_def import Check, ConfigKey, ConfigType, Importance, one_of

AUTHORIZER_CLASS = "authorizer.class.name"
SUPER_USERS = "super.users"
ALLOW_WITHOUT_ACL = "allow.everyone.if.no.acl.found"
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def principals_of(text: str) -> list[str]:
    """Return the principals of a list that semicolons separate."""
    return [part.strip() for part in text.split(";") if part.strip()]


def are_principals(text: str) -> bool:
    """Return whether each element of a list has a colon, as in User:admin."""
    return all(":" in principal for principal in principals_of(text))


AUTHORIZER_KEYS = (
    ConfigKey(
        AUTHORIZER_CLASS,
        ConfigType.STRING,
        "",
        one_of("", STANDARD_AUTHORIZER),
        Importance.LOW,
        f"{STANDARD_AUTHORIZER}: what clients may do is decided by ACLs. Empty: every client may do everything. No "
        "other class is known, and none is loaded.",
    ),
    ConfigKey(
        SUPER_USERS,
        ConfigType.STRING,
        "",
        Check(are_principals, "principals such as User:admin, separated by semicolons"),
        Importance.LOW,
        "Principals that may do everything, whatever the ACLs say: User:admin;User:operator. Only with an authorizer.",
    ),
    ConfigKey(
        ALLOW_WITHOUT_ACL,
        ConfigType.BOOLEAN,
        False,
        None,
        Importance.LOW,
        "Whether every client may use a resource that no ACL names at all. Only with an authorizer.",
    ),
)
