"""Every API in every version that both serve: the same requests to Tidelog and to Apache Kafka get the same responses.

The questions are in ``tests/support/scripts``. Answers are compared field by field after ids, ports and times were made
comparable (``tests/support/questions.py``). Where Tidelog means to differ, ``DELIBERATE`` says in what and why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.compared import collect_differences, two_brokers, unexpected_differences
from tests.support.questions import Broker
from tests.support.scripts import admin, groups, records, shares, streams, topics, transactions
from tests.support.scripts.registry import SCRIPTS, Entry
from tidelog.protocol.api_keys import ApiKey

pytestmark = [pytest.mark.java, pytest.mark.slow]

KIPS_PAGE = Path(__file__).resolve().parents[2] / "docs" / "kips.md"
SCRIPT_MODULES = (admin, groups, records, topics, transactions)
"""Importing them put their scripts into the table."""
ALSO = (
    "create_acls",
    "delete_acls",
    "describe_delegation_token",
    "describe_quorum",
    "describe_user_scram_credentials",
    "expire_delegation_token",
    "renew_delegation_token",
    *{entry.api for entry in (*shares.SHARE_SCRIPTS, *streams.STREAMS_SCRIPTS)},
    "streams_group_describe",
)
"""APIs without a script of their own here: share and streams groups have theirs in ``test_share_answers`` and
``test_streams_answers``, and DescribeQuorum tells of a quorum that Tidelog does not have."""

DELIBERATE = {
    # KafkaConfigSchema.resolveEffectiveTopicConfigs tells all keys of LogConfig, which has none of these (any more).
    r"create_topics.*\.topics\[\d+\]\.configs": "keys of its own (index.*), and those of old formats, are told too",
    # ConfigHelper.configSynonyms drops all before an entry named log.retention.ms, which has no value unless set.
    r"describe_configs.*\.synonyms \[\{'name': 'log\.retention\.hours'": "the broker's value that a topic's own hides",
    # ReplicaManager.appendRecordsToLocalLog tells it unless the batch is too large or corrupt, or the log is offline.
    r"produce.*\.log_start_offset -1 0": "clients read it of a refused batch with UNKNOWN_PRODUCER_ID, never said here",
    # GroupMetadataManager gives patterns to an executor; the first heartbeat is answered without their topics.
    r"consumer_group_heartbeat.*subscribed_topic_regex.*": "patterns are resolved with the heartbeat, not after it",
}
"""What differs -- question, field and both values, matched from the start -- and the reason."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    with two_brokers(tmp_path_factory.mktemp("answers"), {}, {}) as pair:
        yield pair


@pytest.mark.parametrize("entry", SCRIPTS, ids=lambda entry: entry.run.__name__)
def test_same_answers(brokers: tuple[Broker, Broker], entry: Entry) -> None:
    ranges = [broker.versions()[entry.api_key] for broker in brokers]
    versions = range(max(low for low, _ in ranges), min(high for _, high in ranges) + 1)
    assert unexpected_differences(collect_differences(brokers, entry, versions), DELIBERATE) == []


def test_scripts_cover_all_apis_that_both_serve(brokers: tuple[Broker, Broker]) -> None:
    """Each API is asked about by a script of its own, or within another's (``ALSO``)."""
    asked = {ApiKey[api.upper()] for api in ALSO} | {entry.api_key for entry in SCRIPTS}
    ours, theirs = (broker.versions() for broker in brokers)
    assert sorted(set(ours) & set(theirs) - asked) == []


def test_apis_and_versions_differ_where_the_page_says(brokers: tuple[Broker, Broker]) -> None:
    """``docs/kips.md`` has a line with a reason for each."""
    ours, theirs = (broker.versions() for broker in brokers)
    differ = {
        key: (versions_text(ours.get(key)), versions_text(theirs.get(key)))
        for key in set(ours) | set(theirs)
        if ours.get(key) != theirs.get(key)
    }
    lines = re.findall(r"(?m)^\| (\d+) \| \w+ \| ([\d a-z]+) \| ([\d a-z]+) \| .+ \|$", KIPS_PAGE.read_text())
    assert {int(key): (our, their) for key, our, their in lines} == differ


def versions_text(versions: tuple[int, int] | None) -> str:
    """Format a range of versions as the page does."""
    if versions is None:
        return "no"
    low, high = versions
    return str(low) if low == high else f"{low} to {high}"
