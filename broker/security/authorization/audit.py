"""Audit lines of the authorizer, as Kafka writes them: logger ``kafka.authorizer.logger``.

    denied                              INFO, at most LINES_PER_SECOND; the first denial of a later second also writes
                                        how many were left out (``denied_total`` counts all)
    allowed                             DEBUG
    denied with ``is_filter``           below DEBUG (Kafka's TRACE); see ``Authorizer.authorize``
    operations that an answer lists     below DEBUG, allowed or denied; see ``Authorizer.operations``

Source: StandardAuthorizerData.buildAuditMessage of Kafka 4.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidelog.broker.metadata.metadata_image import AccessRule
from tidelog.broker.security.authorization.decision import Client, Decision
from tidelog.broker.security.log_lines import escape
from tidelog.protocol.acl import AclOperation, AclPermissionType, PatternType, ResourceType, member_of
from tidelog.protocol.api_keys import ApiKey

logger = logging.getLogger("kafka.authorizer.logger")
is_audited = logger.isEnabledFor
"""Function that returns whether lines of a level are written."""

TRACE = 5
LINES_PER_SECOND = 100
"""Further denials are counted, not written: a refused client may repeat its request without end."""


class Audit:
    """Writer of one authorizer's audit lines. Loop thread only."""

    __slots__ = ("_clock", "_left_out", "_lines", "_second")

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` is in milliseconds and monotonic."""
        self._clock = clock
        self._second = -1
        self._lines = 0
        self._left_out = 0

    def note(self, level: int, client: Client, asked: AskedOperation, decision: Decision) -> None:
        """Write the line of one decision if the level is enabled; denials beyond LINES_PER_SECOND are only counted."""
        if logger.isEnabledFor(level) and (decision.is_allowed or level < logging.INFO or self._has_room()):
            logger.log(level, "%s", audit_line(client, asked, decision))

    def _has_room(self) -> bool:
        second = int(self._clock() // 1000)
        if second != self._second:
            if self._left_out:
                logger.info("%d denials within one second were not written", self._left_out)
            self._second, self._lines, self._left_out = second, 0, 0
        self._lines += 1
        self._left_out += self._lines > LINES_PER_SECOND
        return self._lines <= LINES_PER_SECOND


class AskedOperation:
    """Subject of a decision: an operation on a resource, for a request that refers to the resource ``count`` times."""

    __slots__ = ("api_key", "count", "name", "operation", "resource_type")

    def __init__(self, operation: int, resource_type: int, name: str, api_key: int, count: int = 1) -> None:
        self.operation = operation
        self.resource_type = resource_type
        self.name = name
        self.api_key = api_key
        self.count = count


def audit_line(client: Client, asked: AskedOperation, decision: Decision) -> str:
    """Return Kafka's line about one decision. Control characters of names are escaped."""
    resource_type = member_of(ResourceType, asked.resource_type)
    return escape(
        f"Principal = {client.principal} is {'Allowed' if decision.is_allowed else 'Denied'} "
        f"operation = {member_of(AclOperation, asked.operation).name} from host = {client.host} "
        f"on resource = {camel_case(resource_type.name)}:LITERAL:{asked.name} "
        f"for request = {request_name(asked.api_key)} with resourceRefCount = {asked.count} "
        f"based on rule {rule_text(decision.rule)}"
    )


def rule_text(rule: AccessRule | str) -> str:
    """Return a rule as Kafka prints it."""
    if isinstance(rule, str):
        return rule
    return (
        f"MatchingAcl(acl=StandardAcl(resourceType={member_of(ResourceType, rule.resource_type).name}, "
        f"resourceName={rule.resource_name}, patternType={member_of(PatternType, rule.pattern_type).name}, "
        f"principal={rule.principal}, host={rule.host}, operation={member_of(AclOperation, rule.operation).name}, "
        f"permissionType={member_of(AclPermissionType, rule.permission).name}))"
    )


def request_name(api_key: int) -> str:
    """Return the name of an API, or Http for a request over HTTP."""
    return camel_case(ApiKey(api_key).name) if api_key >= 0 else "Http"


def camel_case(name: str) -> str:
    """Return the name of a constant as Kafka prints it: LIST_OFFSETS as ListOffsets."""
    return "".join(word.capitalize() for word in name.split("_"))
