"""The console of members of a cluster: it also shows partitions that other members lead, with the permissions of the
caller."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.clients.test_cluster_start import NODES, cluster
from tests.clients.test_console import IN_BROWSER
from tests.clients.test_console import browser as browser
from tests.support.admin import Admin
from tests.support.cluster_clients import WAIT_S
from tidelog.client.admin.groups import describe_group
from tidelog.client.cluster import Cluster
from tidelog.console.rendering import link

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.java, pytest.mark.slow]
PARTITIONS, RECORDS = 4, 10
TOPIC = "spread"
GROUP = "readers"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A cluster of two members with a topic whose partitions have one replica each, and a group that has read it."""
    with cluster(tmp_path_factory.mktemp("cluster")) as (_, found):
        Admin(found["bootstrap"]).create(TOPIC, PARTITIONS, {"min.insync.replicas": "1"})
        producer = Producer({"bootstrap.servers": found["bootstrap"]})
        for number in range(RECORDS):
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, f"value {partition}.{number}", partition=partition)
        assert producer.flush(WAIT_S) == 0
        consumer = Consumer(
            {"bootstrap.servers": found["bootstrap"], "group.id": GROUP, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([TOPIC])
        read = 0
        while read < PARTITIONS * RECORDS:
            read += consumer.poll(WAIT_S) is not None
        consumer.commit(asynchronous=False)
        consumer.close()
        yield found


def get(console: str, path: str) -> tuple[int, str]:
    """Get a page: its status and its text."""
    try:
        with urllib.request.urlopen(console + path, timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def show_in_browser(browser: Browser, console: str, partition: int) -> str:
    """Return the table of records that a person sees who opens a partition from the topic's page."""
    context = browser.new_context()
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(console + link("topics", TOPIC))
    page.locator("#partitions").get_by_role("link", name=str(partition), exact=True).click()
    text: str = page.locator("#records").inner_text()
    context.close()
    assert [url for url in asked if not url.startswith(console)] == []
    return text


@IN_BROWSER
def test_a_person_sees_records_of_every_partition_on_every_member(found: dict[str, Any], browser: Browser) -> None:
    for member in found["brokers"]:
        for partition in range(PARTITIONS):
            assert f"value {partition}.7" in show_in_browser(browser, member["console"], partition)


def leaders(text: str) -> set[str]:
    """Return the leaders that a topic's page names."""
    return set(re.findall(r'</a></th><td class="number">(\d+)</td>', text))


def test_records_of_each_partition_are_shown_on_each_member(found: dict[str, Any]) -> None:
    for member in found["brokers"]:
        for partition in range(PARTITIONS):
            status, text = get(member["console"], link("topics", TOPIC, "records", partition=partition))
            assert status == 200, text[-800:]
            assert [f"value {partition}.{number}" in text for number in range(RECORDS)] == [True] * RECORDS
            status, text = get(member["console"], link("topics", TOPIC, "records", partition, 7))
            assert status == 200, text[-800:]
            assert f"value {partition}.7" in text


def test_a_topic_has_the_offsets_of_all_partitions(found: dict[str, Any]) -> None:
    for member in found["brokers"]:
        status, text = get(member["console"], link("topics", TOPIC))
        assert status == 200
        assert len(leaders(text)) == NODES
        assert text.count(f'<td class="number">{RECORDS}</td><td class="number">{RECORDS}</td>') == PARTITIONS


def test_a_groups_lag_is_whole_where_other_members_lead(found: dict[str, Any]) -> None:
    """On its coordinator's console, and by the command line; the other member names the coordinator."""
    consumer = Consumer({"bootstrap.servers": found["bootstrap"], "group.id": "behind"})
    behind = [TopicPartition(TOPIC, partition, RECORDS - 3) for partition in range(PARTITIONS)]
    consumer.commit(offsets=behind, asynchronous=False)
    consumer.close()
    answers = [get(member["console"], link("group", id="behind")) for member in found["brokers"]]
    (text,) = [text for status, text in answers if status == 200]
    assert f'<dd id="lag">{3 * PARTITIONS}</dd>' in text
    with Cluster(found["bootstrap"], WAIT_S) as cluster:
        group = describe_group(cluster, "behind")
    assert (group.is_lag_known, group.lag) == (True, 3 * PARTITIONS)
