"""Authorizer of a broker: it decides by ACLs and super users, caches decisions, and writes audit lines (``audit``).

Decisions are cached for each client (principal and host), because connections of one client repeat the same requests. A
change of any ACL begins a new *generation*, which is an object compared by identity: no cached decision outlives the
change. Frequent requests have *shortcuts*: faster checks that allow the topics which ``learn`` has noted, without an
audit line. So if the level of a logger changes, a generation begins too: while lines are written for allowed requests,
no shortcut may be used. Loop thread only.

Source: StandardAuthorizer of Kafka 4.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Set
from ipaddress import IPv6Address
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from tidelog.broker.config.keys.authorizer import ALLOW_WITHOUT_ACL, SUPER_USERS, principals_of
from tidelog.broker.metadata.metadata_image import AccessRule
from tidelog.broker.security.authorization.acls import Acls
from tidelog.broker.security.authorization.audit import TRACE, AskedOperation, Audit, is_audited
from tidelog.broker.security.authorization.decision import (
    ANY_NAME,
    DEFAULT_ALLOW,
    DEFAULT_DENY,
    SUPER_USER,
    Client,
    Decision,
    decide,
    is_allowed_on_any,
)
from tidelog.broker.security.authorization.grants import FetchGuard, Grants
from tidelog.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType

if TYPE_CHECKING:
    from tidelog.broker.config.broker_config import BrokerConfig
    from tidelog.broker.metadata.delta import MetadataDelta
    from tidelog.broker.metadata.image import MetadataCache
    from tidelog.broker.metadata.metadata_image import MetadataImage
    from tidelog.broker.replica.fetching.fetch_session import FetchTarget
    from tidelog.broker.requests.context import RequestContext
    from tidelog.broker.security.principal import Principal
    from tidelog.protocol.messages.fetch import FetchRequest

logger = logging.getLogger(__name__)

MAX_KEPT = 10_000
"""Largest number of decisions cached for one client, with those for shortcuts; then all of them are dropped."""
MANY_ACLS = 10_000
"""Number of ACLs above which the broker logs a warning."""
_TYPES = 16
"""A number above all codes of resource types."""
_TOPIC = int(ResourceType.TOPIC)
_READ, _WRITE, _DESCRIBE = int(AclOperation.READ), int(AclOperation.WRITE), int(AclOperation.DESCRIBE)
_NO_TOPICS: frozenset[str | bytes] = frozenset()


class Authorizer:
    """Decides what clients may do. Loop thread only."""

    __slots__ = (
        "_acls",
        "_audit",
        "_grants",
        "_is_over_many",
        "_is_topic",
        "_super_users",
        "_without_acl",
        "denied_total",
        "generation",
    )

    def __init__(
        self,
        rules: Iterable[AccessRule],
        *,
        super_users: Collection[str],
        allows_without_acl: bool,
        clock: Callable[[], float],
        is_topic: Callable[[str], bool],
    ) -> None:
        """``clock`` is in milliseconds and monotonic; ``is_topic`` returns whether a topic of a name exists."""
        self._acls = Acls(rules)
        self._super_users = frozenset(super_users)
        self._without_acl = DEFAULT_ALLOW if allows_without_acl else DEFAULT_DENY
        self._audit = Audit(clock)
        self._is_topic = is_topic
        self._grants: WeakValueDictionary[Client, Grants] = WeakValueDictionary()
        self._is_over_many = False
        self.denied_total = 0
        """Number of denials, without those of checks with ``is_filter``; for metrics."""
        self.generation = object()
        """Identity of the ACLs and log levels in force; another object after each change."""
        self._warn_of_many()

    @property
    def rules(self) -> Collection[AccessRule]:
        """The ACLs in force."""
        return self._acls

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply the changes of ACLs in a delta."""
        if not delta.acls.changed:
            return
        for acl_id, rule in delta.acls.changed.items():
            former = delta.acls.old.get(acl_id)
            if former is not None:
                self._acls.remove(former)
            if rule is not None:
                self._acls.add(rule)
        self.begin_generation()
        self._warn_of_many()

    def begin_generation(self) -> None:
        """Drop all cached decisions, as the ACLs or the levels of loggers have changed."""
        self.generation = object()

    def _warn_of_many(self) -> None:
        is_over = len(self._acls) > MANY_ACLS
        if is_over and not self._is_over_many:
            logger.warning(
                "there are more than %d ACLs: one ACL of a prefix can replace those of many names", MANY_ACLS
            )
        self._is_over_many = is_over

    def authorize(
        self,
        context: RequestContext,
        operation: int,
        resource_type: int,
        name: str,
        *,
        count: int = 1,
        is_filter: bool = False,
    ) -> bool:
        """Return whether a client may do this operation. ``count`` is how often the request names the resource.
        ``is_filter`` says that a denial is not an error by itself: it leaves the resource out of the answer, or another
        permission may do as well.
        """
        decision = self._decide(context, operation, resource_type, name)
        if decision.is_allowed:
            if is_audited(logging.DEBUG):
                self._note(
                    logging.DEBUG, context, AskedOperation(operation, resource_type, name, context.api_key, count)
                )
            return True
        self.denied_total += not is_filter
        level = TRACE if is_filter else logging.INFO
        if is_audited(level):
            self._note(level, context, AskedOperation(operation, resource_type, name, context.api_key, count))
        return False

    def learn(self, context: RequestContext, operation: int, topic: str, key: str | bytes) -> bool:
        """Note for the shortcuts that a client may WRITE, READ or DESCRIBE a topic, if it may. ``key`` is the topic's
        name or id.

        Returns True if that was noted. Otherwise the caller has to call ``authorize``: the client may not, an audit
        line is due, or the name may be that of a virtual topic.
        """
        if may_be_virtual(topic) or is_audited(logging.DEBUG):
            return False
        if not self._decide(context, operation, _TOPIC, topic).is_allowed:
            return False
        grants = self._grants_of(context)
        if grants.cached_count >= MAX_KEPT:
            grants.begin(self.generation)
        grants.cached_count += 1
        grants.by_operation[operation].add(key)
        return True

    def authorize_any(self, context: RequestContext, operation: int, resource_type: ResourceType) -> bool:
        """Return whether a client may do this operation with at least one resource of a type, existing or not."""
        if self.authorize(context, operation, resource_type, ANY_NAME, is_filter=True):
            return True
        grants = self._grants_of(context)
        kind = operation * _TYPES + resource_type
        found = grants.any_of_type.get(kind)
        if found is None:
            found = is_allowed_on_any(self._acls, grants.client, operation, resource_type)
            grants.any_of_type[kind] = found
        return found

    def fetch_guard(self, metadata: MetadataCache, context: RequestContext, request: FetchRequest) -> FetchGuard:
        """Return the check of a fetch's partitions. A replica's fetch gets one of its own; the fetches of clients share
        that of their connection.
        """
        if request.replica_id >= 0 or request.replica_state.replica_id >= 0:
            return ReplicaFetchGuard(self, metadata, context)
        guard = context.fetch_guard
        if guard is None:
            guard = context.fetch_guard = ClientFetchGuard(self, metadata, context)
        return guard

    def may_describe(self, context: RequestContext, topic: str) -> bool:
        """Return whether a client may DESCRIBE a topic, for answers that leave out topics that it may not."""
        return self.authorize(context, AclOperation.DESCRIBE, _TOPIC, topic, is_filter=True)

    def refused_creations(self, context: RequestContext, topics: Iterable[str]) -> list[str]:
        """Return the topics that a client may not create."""
        if self.authorize(context, AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, is_filter=True):
            return []
        return [name for name in topics if not self.authorize(context, AclOperation.CREATE, _TOPIC, name)]

    def refuses_topic_id(self, metadata: MetadataCache, context: RequestContext, topic_id: bytes) -> bool:
        """Return whether a client may not READ the topic with this id; an unknown id is not refused."""
        name = metadata.topic_names.get(topic_id)
        return name is not None and not self.authorize(context, _READ, _TOPIC, name)

    def operations(self, context: RequestContext, supported: Iterable[int], resource_type: int, name: str) -> int:
        """Return the bit field of those ``supported`` operations that a client may do (KIP-430)."""
        bits = 0
        for operation in supported:
            decision = self._decide(context, operation, resource_type, name)
            bits |= decision.is_allowed << operation
            if is_audited(TRACE):
                self._note(TRACE, context, AskedOperation(operation, resource_type, name, context.api_key))
        return bits

    def _decide(self, context: RequestContext, operation: int, resource_type: int, name: str) -> Decision:
        grants = self._grants_of(context)
        if grants.is_super:
            return SUPER_USER
        if resource_type == _TOPIC and may_be_virtual(name):
            name = self._base_topic(name)  # before the cache: a topic of that name may be created or deleted
        kind = operation * _TYPES + resource_type
        verdicts = grants.verdicts.get(kind)
        if verdicts is None:
            verdicts = grants.verdicts[kind] = {}
        decision = verdicts.get(name)
        if decision is None:
            decision = decide(self._acls, grants.client, operation, resource_type, name, self._without_acl)
            self._keep(grants, kind, name, decision)
        return decision

    def _base_topic(self, name: str) -> str:
        """Return the topic whose ACLs apply to a name: for a virtual topic its base, even if the query after ``?`` is
        malformed.
        """
        if self._is_topic(name):
            return name
        from tidelog.broker.metadata.virtual_names import base_name  # only names of virtual topics need it

        return base_name(name)

    def _keep(self, grants: Grants, kind: int, name: str, decision: Decision) -> None:
        if grants.cached_count >= MAX_KEPT:
            grants.begin(self.generation)
        grants.cached_count += 1
        grants.verdicts.setdefault(kind, {})[name] = decision

    def _grants_of(self, context: RequestContext) -> Grants:
        """Return the cached decisions of a context's client in this generation. The client's connections share them."""
        grants = context.grants
        principal = context.principal
        if grants is None or (grants.principal is not principal and grants.principal != principal):
            grants = context.grants = self._shared_grants(principal, context.client_host)
            context.principal = grants.principal  # equal, and from now on identical
        if grants.generation is not self.generation:
            grants.begin(self.generation)
        return grants

    def _shared_grants(self, principal: Principal, host: str) -> Grants:
        client = Client(str(principal), host_text(host))
        grants = self._grants.get(client)
        if grants is None:
            is_super = client.principal in self._super_users
            grants = self._grants[client] = Grants(principal, client, self.generation, is_super=is_super)
        return grants

    def _note(self, level: int, context: RequestContext, asked: AskedOperation) -> None:
        decision = self._decide(context, asked.operation, asked.resource_type, asked.name)
        self._audit.note(level, self._grants_of(context).client, asked, decision)


class ClientFetchGuard:
    """Check of the partitions that one connection fetches, repeated at each read. Loop thread only."""

    __slots__ = ("_authorizer", "_context", "_metadata")

    def __init__(self, authorizer: Authorizer, metadata: MetadataCache, context: RequestContext) -> None:
        self._authorizer = authorizer
        self._metadata = metadata
        self._context = context

    def readable(self) -> Set[str | bytes]:
        """Return names and ids of topics that need no check until the loop's next turn."""
        grants = self._context.grants
        if (
            grants is not None
            and grants.generation is self._authorizer.generation
            and grants.principal is self._context.principal
        ):
            return grants.readable
        return _NO_TOPICS

    def refuses(self, target: FetchTarget) -> bool:
        """Return whether a partition is refused; a partition with an unknown topic id is not."""
        name = target.topic or self._metadata.topic_names.get(target.topic_id)
        if name is None or self._authorizer.learn(self._context, _READ, name, target.topic or target.topic_id):
            return False
        return not self._authorizer.authorize(self._context, _READ, _TOPIC, name)


class ReplicaFetchGuard(ClientFetchGuard):
    """Check of a replica's fetch: CLUSTER_ACTION, for every topic."""

    __slots__ = ()

    def readable(self) -> Set[str | bytes]:
        """Return no topic: a permission to READ does not count for a replica."""
        return _NO_TOPICS

    def refuses(self, target: FetchTarget) -> bool:
        """Return whether the client may not act as a broker."""
        return not self._authorizer.authorize(
            self._context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
        )


def authorizer_of_image(
    config: BrokerConfig, image: MetadataImage, metadata: MetadataCache, clock: Callable[[], float]
) -> Authorizer:
    """Build the authorizer of a configuration with the ACLs of an image; ``publish`` applies later changes."""
    return Authorizer(
        image.acls.values(),
        super_users=principals_of(config.get_str(SUPER_USERS)),
        allows_without_acl=config.get_bool(ALLOW_WITHOUT_ACL),
        clock=clock,
        is_topic=metadata.topics.__contains__,
    )


def may_be_virtual(name: str) -> bool:
    """Return whether a name has the form of a virtual topic's name (``metadata.virtual_names``). A topic may have such
    a name, too.
    """
    return "?" in name or "..." in name


def host_text(address: str) -> str:
    """Return an address as Java writes it, which is how ACLs name hosts: IPv6 with all eight groups, without leading
    zeros; mapped IPv4 as IPv4.
    """
    if ":" not in address:
        return address
    plain, percent, scope = address.partition("%")
    parsed = IPv6Address(plain)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return ":".join(f"{int(group, 16):x}" for group in parsed.exploded.split(":")) + percent + scope
