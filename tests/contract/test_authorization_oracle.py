"""Random ACLs and random requests: Apache Kafka's StandardAuthorizer and Tidelog allow, refuse and hide the same.

A round replaces all ACLs by a random set, and asks questions of every API. They are about names that are there and
names that are not, from users who have logged in, at two addresses. Compared are all error codes at every level, names
that are told or left out, and the bits of authorized operations. ``make authorization-oracle`` asks 1,000 questions of
each setting.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.access_brokers import (
    GROUPS,
    HOSTS,
    MISSING,
    TOPICS,
    TRANSACTIONS,
    USERS,
    BrokerClients,
    random_acl,
    two_brokers,
)
from tests.support.access_questions import QUESTIONS, RULES_OF_THEIR_OWN, Names, PermissionRequest
from tests.support.compared import differences
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.types import ZERO_UUID

pytestmark = [pytest.mark.java, pytest.mark.slow]

REQUESTS = int(os.environ.get("TIDELOG_ORACLE_REQUESTS", "180"))
SEED = int(os.environ.get("TIDELOG_ORACLE_SEED", "20261122"))
QUESTIONS_PER_ROUND = 36
MAX_ACLS = 45
TOLD = {"name", "topic", "topic_name", "group_id", "transactional_id", "resource_name", "key", "principal_name"}
SETTLED_S = 5.0
"""How long a difference must last: Apache Kafka puts ACLs in force in broker and controller one after the other."""
REFUSALS = {29, 30, 31, 53, 54, 64, 65}
LEFT_OUT = {"records", "aborted_transactions", "supported_features", "finalized_features", "nodes"}
NOT_COMPARED = {"create_topics": "topic_id", "alter_share_group_offsets": "topic_id"}
"""Apache Kafka chooses an id for a topic that is validated alone, and tells that of a topic it refuses."""

Pair = tuple[BrokerClients, BrokerClients]


def authorized_part(value: Any, name: str = "") -> Any:
    """Keep the part of an answer that authorization decides: errors, names that are told, bits."""
    if isinstance(value, dict):
        kept = {key: authorized_part(item, key) for key, item in value.items() if key not in LEFT_OUT}
        return {key: item for key, item in kept.items() if item is not None}
    if name in ("configs", "api_keys"):
        return bool(value)  # Tidelog has keys of its own
    if isinstance(value, list):
        return sorted((authorized_part(item) for item in value if isinstance(item, dict)), key=repr)
    if name == "topic_id":
        return value != ZERO_UUID
    if name in TOLD or name.endswith(("error_code", "authorized_operations")):
        return value
    return None


def without(value: Any, name: str) -> Any:
    """Leave any field of a name out of an answer."""
    if isinstance(value, dict):
        return {key: without(item, name) for key, item in value.items() if key != name}
    return [without(item, name) for item in value] if isinstance(value, list) else value


def refusals(value: Any) -> set[int]:
    """Collect every code of an answer that says that something may not be done."""
    if isinstance(value, dict):
        return set().union(*map(refusals, value.values()))
    if isinstance(value, list):
        return set().union(*map(refusals, value))
    return {value} & REFUSALS if isinstance(value, int) else set()


@pytest.fixture(scope="module", params=[False, True], ids=["deny by default", "allow.everyone.if.no.acl.found"])
def brokers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    texts = {"allow.everyone.if.no.acl.found": str(request.param).lower()}
    with two_brokers(tmp_path_factory.mktemp("authorization"), texts) as pair:
        yield pair


def askings(generator: random.Random) -> Iterator[PermissionRequest]:
    """Yield questions, each of all APIs once before any comes again."""
    while True:
        every = [*QUESTIONS, *RULES_OF_THEIR_OWN]
        generator.shuffle(every)
        yield from every


def random_names(generator: random.Random) -> list[Names]:
    """Draw one to three topics, in half of the questions with a group and a transactional id each."""
    topics = generator.sample((*TOPICS, *MISSING), generator.choices((1, 2, 3), (5, 3, 2))[0])
    group, transaction = generator.choice(GROUPS), generator.choice(TRANSACTIONS)
    found = []
    for topic in topics:
        found.append(Names(topic, b"", group, transaction))
        if generator.random() < 0.5:
            group, transaction = generator.choice(GROUPS), generator.choice(TRANSACTIONS)
    return found


def test_the_same_is_refused_and_hidden(brokers: Pair) -> None:
    generator = random.Random(SEED)
    ranges = [asked.admin.versions() for asked in brokers]
    found = []
    for number, asking in zip(range(REQUESTS), askings(generator), strict=False):
        if number % QUESTIONS_PER_ROUND == 0:
            acls = [random_acl(generator) for _ in range(generator.randint(5, MAX_ACLS))]
            for asked in brokers:
                asked.set_acls(acls)
        key = ApiKey[asking.api.upper()]
        if not all(key in served for served in ranges):
            continue
        low, high = (max(served[key][0] for served in ranges), min(served[key][1] for served in ranges))
        version = generator.randint(max(low, asking.since), high)
        client = (generator.choice(list(USERS)), generator.choice(HOSTS))
        names = random_names(generator)
        found += [
            f"{difference} v{version} {client} {names} with {acls}"
            for difference in compare(brokers, client, asking, version, names)
        ]
    assert not found, f"{len(found)}\n" + "\n".join(found[:20])


def compare(
    brokers: Pair, client: tuple[str, str], asking: PermissionRequest, version: int, names: list[Names]
) -> list[str]:
    """Return the differences between both brokers' answers that last."""
    deadline = time.monotonic() + SETTLED_S
    while True:
        answers = [authorized_part(asked.ask(client, asking, version, names)) for asked in brokers]
        if asking.api in NOT_COMPARED:
            answers = [without(answer, NOT_COMPARED[asking.api]) for answer in answers]
        if asking.only_refusals:
            answers = [{"refusals": sorted(refusals(answer))} for answer in answers]
        found = [f"{asking.api} {difference}" for difference in differences(*answers)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)
