"""Choice of a client's quota, and its throttle times, compared with values of Kafka's formula that were computed by
hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker.admin_broker import AdminBroker, context_of
from tidelog.broker.controller.clients.client_quotas import ClientQuotas, Entity, QuotaChange, entity_of
from tidelog.broker.metrics.rates import Window
from tidelog.broker.quota import quotas as module
from tidelog.broker.quota.quotas import (
    FETCH,
    MUTATION,
    PRODUCE,
    MutationQuota,
    Quotas,
    client_of,
    mutation_quota,
)
from tidelog.broker.security.principal import Principal
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import ThrottlingQuotaExceededError

WINDOW = Window(samples=11, sample_ms=1000)
ANN: Entity = (("user", "ann"),)
ME = ("ann", "app")


class Fixture:
    def __init__(self, entities: dict[Entity, dict[str, float]], window: Window = WINDOW) -> None:
        self.time = ManualTime()
        self.quotas = Quotas(
            entities, monotonic_ms=self.time.monotonic_ms, window=window, controller_window=Window(10, 1000)
        )

    def produce(self, size: float, client: tuple[str, str] = ME) -> int:
        return self.quotas.record(PRODUCE, client, size)


def entity(**parts: str | None) -> Entity:
    return entity_of((name.replace("_", "-"), value) for name, value in parts.items())


def test_without_a_quota_nothing_is_counted() -> None:
    fixture = Fixture({ANN: {FETCH: 1.0}})
    assert fixture.produce(1e9) == 0


def test_within_the_quota_no_request_waits() -> None:
    fixture = Fixture({ANN: {PRODUCE: 1000.0}})
    for _ in range(100):
        assert fixture.produce(900) == 0
        fixture.time.advance(1000)


def test_the_wait_brings_the_rate_back() -> None:
    """12,000 bytes at once count as over 10 s: 1,200 a second, a fifth over, so a fifth of 10 s."""
    fixture = Fixture({ANN: {PRODUCE: 1000.0}})
    assert fixture.produce(12_000) == 2000
    fixture.time.advance(10_500)
    assert fixture.produce(0) == 1500
    fixture.time.advance(500)
    assert fixture.produce(0) == 0


def test_use_is_forgotten_after_the_window() -> None:
    fixture = Fixture({ANN: {PRODUCE: 1000.0}})
    assert fixture.produce(50_000) == 40_000
    fixture.time.advance(11_000)
    assert fixture.produce(10_000) == 0


def test_a_sample_that_overlaps_the_beginning_of_the_window_counts() -> None:
    fixture = Fixture({ANN: {PRODUCE: 1000.0}})
    fixture.produce(5000)
    fixture.time.advance(999)
    fixture.produce(5000)
    fixture.time.advance(11_000)  # the sample began 11,999 ms ago, and was last added to 11,000 ms ago
    assert fixture.produce(10_000) == 0
    fixture.produce(1)
    fixture.time.advance(10_999)
    assert fixture.produce(9_000) == round((19_001 / 10.999 - 1000) / 1000 * 10_999)


PRECEDENCE = [
    entity(user="ann", client_id="app"),
    entity(user="ann", client_id=None),
    entity(user="ann"),
    entity(user=None, client_id="app"),
    entity(user=None, client_id=None),
    entity(user=None),
    entity(client_id="app"),
    entity(client_id=None),
]


@pytest.mark.parametrize("first", range(len(PRECEDENCE)))
def test_the_most_specific_quota_holds(first: int) -> None:
    entities = {found: {PRODUCE: 1000.0 + index} for index, found in enumerate(PRECEDENCE) if index >= first}
    meter = Fixture(entities).quotas.meter(PRODUCE, ME)
    assert meter is not None
    assert meter.limit == 1000.0 + first


def test_quotas_of_other_clients_do_not_apply() -> None:
    entities = {entity(user="bob"): {PRODUCE: 1.0}, entity(user="ann", client_id="other"): {PRODUCE: 1.0}}
    assert Fixture(entities).quotas.meter(PRODUCE, ME) is None


@pytest.mark.parametrize(
    ("found", "other", "shared"),
    [
        (entity(user="ann"), ("ann", "other"), True),
        (entity(user=None), ("ann", "other"), True),
        (entity(user=None), ("bob", "app"), False),
        (entity(user="ann", client_id=None), ("ann", "other"), False),
        (entity(client_id="app"), ("bob", "app"), True),
        (entity(client_id=None), ("ann", "other"), False),
        (entity(user=None, client_id="app"), ("bob", "app"), False),
    ],
)
def test_the_entity_of_a_quota_decides_which_clients_share_it(
    found: Entity, other: tuple[str, str], shared: bool
) -> None:
    fixture = Fixture({found: {PRODUCE: 1000.0}})
    fixture.produce(12_000)
    assert (fixture.produce(0, other) > 0) is shared


def test_a_changed_limit_applies_at_once_to_the_recorded_use() -> None:
    fixture = Fixture({ANN: {PRODUCE: 1000.0}})
    assert fixture.produce(9_000) == 0
    fixture.quotas.set({ANN: {PRODUCE: 500.0}})
    assert fixture.produce(0) == 8_000
    fixture.quotas.set({})
    assert fixture.produce(1e9) == 0


def test_request_time_waits_one_sample_at_most() -> None:
    fixture = Fixture({ANN: {"request_percentage": 1.0}})
    assert fixture.quotas.record_request(ME, 0.1) == 0
    assert fixture.quotas.record_request(ME, 0.01) == 1000
    fixture.time.advance(11_000)
    assert fixture.quotas.record_request(ME, 0.0) == 0


def test_an_answer_that_has_to_wait_is_not_counted() -> None:
    fixture = Fixture({ANN: {FETCH: 1000.0}})
    assert fixture.quotas.record_fetch(ME, 9_000) == 0
    assert fixture.quotas.record_fetch(ME, 2_000) == 1000
    assert fixture.quotas.record_fetch(ME, 1_000) == 0
    fixture.quotas.take_back_fetch(ME, 1_000)
    assert fixture.quotas.record_fetch(ME, 1_000) == 0
    assert fixture.quotas.record_fetch(("bob", ""), 10**9) == 0


def test_an_answer_too_large_for_the_window_is_sent_when_it_is_the_first() -> None:
    fixture = Fixture({ANN: {FETCH: 1000.0}})
    assert fixture.quotas.record_fetch(ME, 20_000) == 0
    assert fixture.quotas.record_fetch(ME, 1) == 10_001


def test_the_largest_answer_fills_the_window() -> None:
    assert Fixture({ANN: {FETCH: 1000.0}}).quotas.fetch_limit(ME) == 10_000
    assert Fixture({ANN: {FETCH: 1000.0}}, Window(1, 1000)).quotas.fetch_limit(ME) == 1
    assert Fixture({}).quotas.fetch_limit(ME) is None


def test_idle_meters_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_METERS", 3)
    fixture = Fixture({entity(client_id=None): {PRODUCE: 1000.0, MUTATION: 1.0}})
    fixture.produce(12_000)
    fixture.quotas.record(MUTATION, ("", "x"), 1)
    for number in range(20):
        fixture.produce(0, ("", str(number)))
    assert fixture.produce(0) == 2000


def test_connections_of_an_address_are_a_rate() -> None:
    """Ten at once are one a second over ten seconds; refused connections do not count."""
    entities = {entity(ip="10.0.0.1"): {"connection_creation_rate": 1.0}}
    fixture = Fixture(entities)
    assert [fixture.quotas.record_connection("10.0.0.1") for _ in range(12)] == [0] * 10 + [1000] * 2
    assert fixture.quotas.record_connection("10.0.0.2") == 0
    assert fixture.quotas.waits["connection_creation_rate"].count == 2
    fixture.time.advance(11_000)
    assert fixture.quotas.record_connection("10.0.0.1") == 0


@pytest.mark.parametrize(
    ("name", "host"), [("2001:DB8:0::1", "2001:db8::1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("10.0.0.1", "10.0.0.1")]
)
def test_an_address_may_be_spelled_in_any_way(name: str, host: str) -> None:
    fixture = Fixture({entity(ip=name): {"connection_creation_rate": 1.0}})
    assert [fixture.quotas.record_connection(host) for _ in range(11)] == [0] * 10 + [1000]


def test_each_address_has_the_default_for_itself() -> None:
    fixture = Fixture({entity(ip=None): {"connection_creation_rate": 1.0}})
    for host in ("10.0.0.1", "10.0.0.2"):
        assert [fixture.quotas.record_connection(host) for _ in range(11)] == [0] * 10 + [1000]


class Mutations:
    """A quota with ten saved mutations, and one more each second."""

    def __init__(self, *, strict: bool) -> None:
        self.fixture = Fixture({ANN: {MUTATION: 1.0}})
        self.context = context_of(1, client_id="app")
        self.context.principal = Principal("User", "ann")
        self.quota = MutationQuota(self.fixture.quotas, self.context, strict=strict)


def test_new_clients_are_refused_while_in_debt() -> None:
    mutations = Mutations(strict=True)
    mutations.quota.check()
    mutations.quota.record(13)
    assert mutations.context.throttle_ms == 0
    with pytest.raises(ThrottlingQuotaExceededError):
        mutations.quota.check()
    assert mutations.context.throttle_ms == 3000
    mutations.fixture.time.advance(3000)
    mutations.quota.check()


def test_old_clients_only_wait() -> None:
    mutations = Mutations(strict=False)
    for _ in range(2):
        mutations.quota.check()
        mutations.quota.record(6)
    assert mutations.context.throttle_ms == 2000


def test_tokens_are_saved_up_for_one_window_only() -> None:
    mutations = Mutations(strict=False)
    mutations.fixture.time.advance(100_000)
    mutations.quota.record(10)
    assert mutations.context.throttle_ms == 0
    mutations.quota.record(1)
    assert mutations.context.throttle_ms == 1000


def test_without_a_quota_mutations_are_not_throttled(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path)
    context = context_of(6)
    for found in (mutation_quota(admin.broker, context, strict_since=6), Mutations(strict=True).quota):
        found.check()
    quota = MutationQuota(Fixture({}).quotas, context, strict=True)
    quota.check()
    quota.record(10**6)
    assert context.throttle_ms == 0


def test_quotas_are_loaded_and_kept_over_a_restart(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path, {"quota.window.num": "6"})
    quotas = admin.broker.services.quotas.made
    assert quotas is None
    context = context_of(1, client_id="app")
    client = client_of(context)
    assert client == ("ANONYMOUS", "app")
    ClientQuotas(admin.controller).alter(entity(client_id="app"), [QuotaChange(FETCH, 1000.0)], validate_only=False)
    assert admin.broker.services.quotas.get().fetch_limit(client) == 5000
    again = admin.reopen()
    again.broker.services.quotas.begin_if_wanted()
    assert again.broker.services.quotas.made is not None
    assert again.broker.services.quotas.get().fetch_limit(client) == 5000
    ClientQuotas(again.controller).alter(entity(client_id="app"), [QuotaChange(FETCH, None)], validate_only=False)
    assert again.broker.services.quotas.get().fetch_limit(client) is None


def test_meters_that_are_all_used_are_not_looked_through_for_each_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a client that changes its name with each request makes the broker go through all meters each time."""
    monkeypatch.setattr(module, "MAX_METERS", 4)
    fixture, looks = Fixture({entity(client_id=None): {PRODUCE: 1000.0}}), 0
    drop_idle = fixture.quotas._drop_idle

    def count_looks() -> None:
        nonlocal looks
        looks += 1
        drop_idle()

    monkeypatch.setattr(fixture.quotas, "_drop_idle", count_looks)
    for number in range(64):
        fixture.produce(1, ("", str(number)))
    assert looks == 4
