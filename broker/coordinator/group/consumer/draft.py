"""Draft: the change of a consumer group by one request, with the member after the change and the records so far.

A heartbeat, or a JoinGroup of a classic member (``classic.members``), takes these steps, each over the same ``Draft``:

    apply_subscription   the member's subscription is compared with the known one; the group epoch rises if its topics
                         or its pattern, or any subscribed topic of the group, changed
    update_target        if the group epoch is above the target's, the assignor computes a new target for all members,
                         unless the last one is younger than the group's assignment interval
    move_towards_target  the member goes one step towards its target (``reconciliation``)

Each step adds records; none changes the group. Source: KIP-848.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.coordinator.group.assignment_interval import AssignmentInterval, assign_at_once, may_assign
from tidelog.broker.coordinator.group.assignors import ASSIGNORS, Assignment, MemberSpec
from tidelog.broker.coordinator.group.consumer.group import (
    ConsumerGroup,
    CurrentAssignment,
    ResolvedRegex,
    Subscription,
)
from tidelog.broker.coordinator.group.consumer.reconciliation import reconcile
from tidelog.broker.coordinator.group.consumer.records import (
    current_record,
    epoch_record,
    member_record,
    regex_record,
    target_epoch_record,
    target_record,
)
from tidelog.broker.coordinator.group.topic_patterns import matching_topics
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord

if TYPE_CHECKING:
    from tidelog.broker.coordinator.group.classic.group import ClassicGroup
    from tidelog.broker.metadata.image import MetadataCache
    from tidelog.broker.requests.context import RequestContext
    from tidelog.log.system.time import Time

logger = logging.getLogger(__name__)


MayDescribe = Callable[["RequestContext", str], bool]
"""Function that returns whether a client may DESCRIBE a topic."""


@dataclass(slots=True)
class Draft:
    """The group before the change, one member after it, and the records so far.

    ``target`` (of the member), ``epoch`` and ``assignment_epoch`` (of the group) are those after the change.
    ``replaced`` is the old id of a static member that has a new one; ``upgraded`` is the classic group that ``group``
    replaces. ``regexes`` is None until the group's patterns are resolved again.
    """

    group: ConsumerGroup
    member_id: str
    subscription: Subscription
    current: CurrentAssignment
    records: list[CoordinatorRecord]
    target: Assignment
    replaced: str | None = None
    epoch: int = 0
    assignment_epoch: int = 0
    regexes: dict[str, ResolvedRegex] | None = None
    upgraded: ClassicGroup | None = None

    def subscriptions(self) -> dict[str, Subscription]:
        """Return the subscriptions of all members after the change, by member id."""
        found = {member_id: member.subscription for member_id, member in self.group.members.items()}
        if self.replaced is not None:
            found.pop(self.replaced, None)
        found[self.member_id] = self.subscription
        return found

    def topics_of(self, subscription: Subscription) -> tuple[str, ...]:
        """Return the topic names of a subscription, with those that its pattern matches."""
        regexes = self.group.regexes if self.regexes is None else self.regexes
        resolved = regexes.get(subscription.topic_regex) if subscription.topic_regex else None
        return subscription.topic_names + (resolved.topics if resolved is not None else ())


class DraftSteps:
    """The steps ``apply_subscription`` and ``update_target``, which need the topics' metadata. Loop thread only."""

    def __init__(
        self,
        metadata: MetadataCache,
        time: Time,
        assignors: Sequence[str],
        interval_ms: AssignmentInterval = assign_at_once,
        may_describe: MayDescribe | None = None,
    ) -> None:
        """``may_describe`` excludes topics from a client's patterns; it is None without an authorizer."""
        self.metadata = metadata
        self._time = time
        self.assignors = assignors
        self._interval_ms = interval_ms
        self._may_describe = may_describe

    def apply_subscription(self, draft: Draft, subscription: Subscription, context: RequestContext) -> None:
        """Set the member's subscription. Raise the group epoch if the member's topics or pattern, or a subscribed topic
        of the group, changed; other fields only make a new record of the member. Raises InvalidRegularExpressionError.
        """
        group, before = draft.group, draft.subscription
        draft.subscription = subscription
        is_new = draft.member_id not in group.members
        if is_new or draft.subscription != before:
            draft.records.append(member_record(group.group_id, draft.member_id, draft.subscription))
        now, then = draft.subscription, before
        changed = (now.topic_names, now.topic_regex) != (then.topic_names, then.topic_regex)
        if not changed and group.metadata_version == self.metadata.changes:
            return
        self._resolve_regexes(draft, context)
        metadata_hash = self._metadata_hash(draft)
        if changed or metadata_hash != group.metadata_hash:
            draft.epoch += 1
            draft.records.append(epoch_record(group.group_id, draft.epoch, metadata_hash))
            logger.info("group %s raises its epoch to %d", group.group_id, draft.epoch)

    def _resolve_regexes(self, draft: Draft, context: RequestContext) -> None:
        """Resolve all patterns of the group to topics that the client of this request may describe, as Kafka does."""
        group, may = draft.group, self._may_describe
        names = [name for name, image in self.metadata.topics.items() if not image.is_internal]
        wanted = {s.topic_regex for s in draft.subscriptions().values() if s.topic_regex}
        resolved = dict(group.regexes)
        for regex in wanted:
            topics = matching_topics(regex, names)
            if may is not None:
                topics = tuple(name for name in topics if may(context, name))
            known = resolved.get(regex)
            if known is None or known.topics != topics:
                version = self.metadata.changes
                resolved[regex] = ResolvedRegex(topics, version, self._time.milliseconds())
                draft.records.append(regex_record(group.group_id, regex, resolved[regex]))
        for regex in set(resolved) - wanted:
            del resolved[regex]
            draft.records.append(regex_record(group.group_id, regex, None))
        draft.regexes = resolved

    def _metadata_hash(self, draft: Draft) -> int:
        """Compute a hash of the subscribed topics, their ids and partition counts; 0 if there are no topics."""
        distinct = {(one.topic_names, one.topic_regex): one for one in draft.subscriptions().values()}
        names = {name for subscription in distinct.values() for name in draft.topics_of(subscription)}
        images = (image for name in sorted(names) if (image := self.metadata.find(name)) is not None)
        text = "\n".join(f"{image.name} {image.topic_id.hex()} {image.partition_count}" for image in images)
        if not text:
            return 0
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)

    def update_target(self, draft: Draft) -> None:
        """Compute a target for all members if the group epoch is above the target's and the interval is over."""
        group = draft.group
        if draft.epoch <= group.assignment_epoch:
            return
        if not may_assign(
            group.assigned_at_ms, self._interval_ms("consumer", group.group_id), self._time.milliseconds()
        ):
            return
        subscriptions = draft.subscriptions()
        members: dict[str, MemberSpec] = {}
        counts: dict[bytes, int] = {}
        found: dict[tuple[tuple[str, ...], str | None], frozenset[bytes]] = {}
        for member_id, subscription in subscriptions.items():
            key = subscription.topic_names, subscription.topic_regex
            topics = found.get(key)
            if topics is None:  # most members of a group have the same subscription
                counts_of = self._counts_of(draft.topics_of(subscription))
                counts.update(counts_of)
                topics = found[key] = frozenset(counts_of)
            assigned = draft.target if member_id == draft.member_id else group.target_of(member_id)
            members[member_id] = MemberSpec(topics, subscription.instance_id, assigned)
        target = ASSIGNORS[preferred_assignor(subscriptions.values(), self.assignors[0])](members, counts)
        for member_id, assignment in target.items():
            if member_id not in group.target or group.target[member_id] != assignment:
                draft.records.append(target_record(group.group_id, member_id, assignment))
        draft.records.append(target_epoch_record(group.group_id, draft.epoch, self._time.milliseconds()))
        draft.target = target[draft.member_id]
        draft.assignment_epoch = draft.epoch

    def _counts_of(self, names: Iterable[str]) -> dict[bytes, int]:
        """Return ids and partition counts of those of these topics that exist."""
        images = (image for name in names if (image := self.metadata.find(name)) is not None)
        return {image.topic_id: image.partition_count for image in images}


def draft_of(
    group: ConsumerGroup,
    member_id: str,
    subscription: Subscription,
    current: CurrentAssignment,
    records: list[CoordinatorRecord],
) -> Draft:
    """Build a draft without changes so far."""
    return Draft(
        group,
        member_id,
        subscription,
        current,
        records,
        target=group.target_of(member_id),
        epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
    )


def move_towards_target(draft: Draft, owned: Assignment | None) -> None:
    """Move the member one step towards its target. ``owned`` are the partitions that it reports, None without a
    report."""
    group = draft.group
    owners = group.owners
    if draft.replaced is not None:
        owners = {p: draft.member_id if o == draft.replaced else o for p, o in owners.items()}
    known = group.members.get(draft.member_id)
    draft.current = reconcile(
        owners,
        draft.member_id,
        draft.current,
        target=draft.target,
        target_epoch=draft.assignment_epoch,
        owned=owned,
    )
    if known is None or known.current != draft.current:
        draft.records.append(current_record(group.group_id, draft.member_id, draft.current))


def preferred_assignor(subscriptions: Iterable[Subscription], default: str) -> str:
    """Choose the assignor that most members request, else ``default``."""
    votes: dict[str, int] = {}
    for subscription in subscriptions:
        if subscription.server_assignor is not None:
            votes[subscription.server_assignor] = votes.get(subscription.server_assignor, 0) + 1
    return max(votes, key=lambda name: votes[name]) if votes else default
