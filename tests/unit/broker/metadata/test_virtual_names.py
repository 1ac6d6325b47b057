"""Names of virtual topics, and times in them."""

from __future__ import annotations

import time

import pytest

from tidelog.broker.metadata.image import MAX_VIRTUAL_TOPICS, MetadataCache, TopicImage, single_replica_states
from tidelog.broker.metadata.virtual_names import parse_query, split_name
from tidelog.log.find.times import parse_time
from tidelog.protocol.errors import InvalidTopicError

BASE = TopicImage("orders", b"i" * 16, single_replica_states(1, 3), {}, False)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("orders?key=4711", {"key": b"4711"}),
        ("orders?tag=paid&from=2026-11-21", {"tag": b"paid", "from": b"2026-11-21"}),
        ("orders?key=%F0%9F%8D%8A+a=b", {"key": "🍊+a=b".encode()}),
        ("orders?key=", {"key": b""}),
        ("orders...key.a.b...to.1700000000000", {"key": b"a.b", "to": b"1700000000000"}),
        ("orders...key.a_x20b_x5fx", {"key": b"a b_x"}),
    ],
)
def test_names_are_split_into_topic_and_fields(name: str, fields: dict[str, bytes]) -> None:
    assert split_name(name) == ("orders", fields)


@pytest.mark.parametrize(
    "name", ["?key=1", "orders?", "orders?colour=red", "orders?key=1&key=2", "orders?key=" + "x" * 5000]
)
def test_malformed_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopicError):
        split_name(name)
    cache = MetadataCache()
    cache.put(BASE)
    assert cache.find(name) is None


def test_times_and_tags_are_checked() -> None:
    assert parse_query({"from": b"1700000000000"}, None).begin == 1_700_000_000_000
    with pytest.raises(InvalidTopicError):
        parse_query({"from": b"09:00"}, None)  # a name must mean the same tomorrow
    with pytest.raises(InvalidTopicError):
        parse_query({"tag": b"paid"}, None)


def test_a_virtual_topic_has_an_id_of_its_own_that_stays() -> None:
    cache = MetadataCache()
    assert cache.find("orders?key=1") is None
    cache.put(BASE)
    image = cache.find("orders?key=1")
    assert image is not None
    assert (image.name, image.source, image.partition_count) == ("orders?key=1", "orders", 3)
    assert cache.topic_by_id(image.topic_id) == image
    assert cache.find("orders?key=1") == image
    other = cache.find("orders?key=2")
    assert other is not None
    assert len({image.topic_id, other.topic_id, BASE.topic_id}) == 3
    assert list(cache.topics) == ["orders"]


@pytest.mark.parametrize("other", ["orders...key.1...tag.a", "orders?tag=a&key=1", "orders?key=%31&tag=a"])
def test_each_spelling_is_found_by_its_own_id(other: str) -> None:
    """A group of the consumer protocol is assigned topic ids: the name of another spelling would be a topic that it did
    not subscribe to."""
    cache = MetadataCache()
    cache.put(BASE)
    for name in ("orders?key=1&tag=a", other):
        image = cache.find(name)
        assert image is not None
        assert cache.topic_by_id(image.topic_id) == image
    first = cache.find("orders?key=1&tag=a")
    assert first is not None
    assert cache.topic_by_id(first.topic_id) == first


def test_a_topic_created_again_has_other_virtual_topics() -> None:
    cache = MetadataCache()
    cache.put(BASE)
    before = cache.find("orders?key=1")
    assert before is not None
    cache.remove("orders")
    assert cache.find("orders?key=1") is None
    cache.put(BASE._replace(topic_id=b"j" * 16))
    assert cache.topic_by_id(before.topic_id) is None


def test_ids_of_virtual_topics_are_bounded() -> None:
    cache = MetadataCache()
    cache.put(BASE)
    for number in range(MAX_VIRTUAL_TOPICS + 5):
        cache.find(f"orders?key={number}")
    assert len(cache.topic_names) == MAX_VIRTUAL_TOPICS + 1


def test_times_may_be_relative_where_there_is_a_now() -> None:
    now = parse_time("2026-11-21T12:00:00")
    assert parse_time("09:00", now) == parse_time("2026-11-21T09:00")
    assert parse_time("15m", now) == now - 15 * 60_000
    assert parse_time("2026-11-21T09:00Z") == 1_795_251_600_000
    for wrong in ("soon", "25:00", "²²²²²²²²²", "9" * 20, "9" * 12 + "d"):
        with pytest.raises(ValueError, match=f"^'{wrong}' is not a time: .* ago$"):
            parse_time(wrong, now)


def test_a_time_of_today_has_the_offset_of_its_own_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        now = parse_time("2026-03-29T10:00+02:00")  # summer time began at 2 o'clock
        assert parse_time("01:00", now) == parse_time("2026-03-29T01:00+01:00")
        assert parse_time("09:00", now) == parse_time("2026-03-29T09:00+02:00")
    time.tzset()
