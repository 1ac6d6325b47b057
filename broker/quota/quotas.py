"""Client quotas: which quota applies to a client, how much of it is used, and how long the client must wait (KIP-13).

Of the quotas that are set, the most specific applies, for each quota key by itself. From the most to the least specific
("default" is the default entity of that type):

    (user, client-id)  (user, default)  user  (default, client-id)  (default, default)  default user  client-id
    default client-id

A quota of a user is shared by all clients of that user; a quota of a user and a client id, by all clients with that
pair. A default applies to each user or client id by itself. Byte rates and request time are rates over
``quota.window.num`` samples of ``quota.window.size.seconds``. The wait is Kafka's. In a full window it brings the rate
back to the limit if the client sends nothing meanwhile:

    wait = (rate - limit) / limit * window

Controller mutations (partitions created and deleted, KIP-599) are taken from a token bucket, which holds as many tokens
as flow in during the window. While the bucket is in debt, requests of new versions are refused; requests of old
versions are carried out, and their clients wait.

New connections of an address are a rate too (KIP-612). A connection above the limit is not counted, and is closed after
its wait.

Times are milliseconds of the monotonic clock. Meters that are idle are dropped once there are more than MAX_METERS.
Loop thread only. Source: KIP-13, KIP-55 (precedence), KIP-124, KIP-599.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from tidelog.broker.controller.clients.client_quotas import (
    CLIENT_ID,
    CLIENT_QUOTAS,
    IP,
    IP_QUOTAS,
    USER,
    Entity,
)
from tidelog.broker.metrics.rates import Rate, Window
from tidelog.broker.metrics.registry import Sample
from tidelog.protocol.errors import ThrottlingQuotaExceededError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.requests.context import RequestContext

PRODUCE, FETCH, REQUEST, MUTATION = CLIENT_QUOTAS
(CONNECTION,) = IP_QUOTAS
ALL_QUOTAS = (*CLIENT_QUOTAS, *IP_QUOTAS)
_METRIC = "kafka_server_clientquotas"
MAX_METERS = 10_000
"""Largest number of meters, and of remembered look-ups: a client can change its client id with each request. If more
meters are in use, they are kept; idle ones are dropped again when there are twice as many."""


class TokenBucket:
    """Bucket into which ``limit`` tokens flow each second. It holds the tokens of one window at most; its level may be
    negative."""

    __slots__ = ("_filled_ms", "_tokens", "_window", "limit")

    def __init__(self, window: Window, limit: float, now_ms: float) -> None:
        self._window = window
        self._filled_ms = now_ms
        self.limit = limit
        self._tokens = self._capacity

    @property
    def _capacity(self) -> float:
        return self._window.length_ms / 1000 * self.limit

    def _fill(self, now_ms: float) -> None:
        self._tokens = min(self._capacity, self._tokens + self.limit * (now_ms - self._filled_ms) / 1000)
        self._filled_ms = now_ms

    def record(self, value: float, now_ms: float) -> None:
        """Take tokens out."""
        self._fill(now_ms)
        self._tokens -= value

    def wait_ms(self, now_ms: float) -> float:
        """Return how long it takes until the level is no longer negative; 0 if it is not."""
        self._fill(now_ms)
        return max(-self._tokens / self.limit * 1000, 0.0)

    def is_idle(self, now_ms: float) -> bool:
        """Return whether this bucket is full, so that a new one could replace it."""
        self._fill(now_ms)
        return self._tokens >= self._capacity


MAX_WAIT_MS = 2**31 - 1
"""Longest wait: ``throttle_time_ms`` in answers is an int32."""


def compute_wait_ms(meter: Meter, now_ms: float) -> int:
    """Return how long a client has to wait, in whole milliseconds, at most MAX_WAIT_MS."""
    return round(min(meter.wait_ms(now_ms), MAX_WAIT_MS))


Meter = Rate | TokenBucket
Client = tuple[str, str]
"""User and client id."""


class Waits:
    """Waits that one quota imposed: their number, their total time, and those that are not over."""

    __slots__ = ("_deadlines", "count", "total_ms")

    def __init__(self) -> None:
        self._deadlines: list[float] = []
        self.count = 0
        self.total_ms = 0

    def note(self, wait_ms: int, now_ms: float) -> None:
        """Count a wait of ``wait_ms`` that begins now."""
        self.count += 1
        self.total_ms += wait_ms
        self.count_open(now_ms)
        heappush(self._deadlines, now_ms + wait_ms)

    def count_open(self, now_ms: float) -> int:
        """Return the number of waits that are not over."""
        while self._deadlines and self._deadlines[0] <= now_ms:
            heappop(self._deadlines)
        return len(self._deadlines)


class Quotas:
    """The quotas that are set, and a meter for each client, or group of clients that share a quota."""

    def __init__(
        self,
        entities: Mapping[Entity, Mapping[str, float]],
        *,
        monotonic_ms: Callable[[], float],
        window: Window,
        controller_window: Window,
    ) -> None:
        self.monotonic_ms = monotonic_ms
        self._window = window
        self._controller_window = controller_window
        self._limits: dict[str, dict[Entity, float]] = {}
        self._meters: dict[tuple[str, Client], Meter] = {}
        self._max_meters = MAX_METERS
        self._found: dict[tuple[str, Client], Meter | None] = {}
        """Remembered look-ups: quota key and client -> the meter, or None if no quota applies."""
        self.waits = {key: Waits() for key in ALL_QUOTAS}
        """Waits of requests and connections by quota key, for metrics. A request counts for the quota that made it wait
        longest."""
        self.set(entities)

    def set(self, entities: Mapping[Entity, Mapping[str, float]]) -> None:
        """Replace all quotas. What clients have used so far stays counted, against the new limits."""
        self._limits = {
            key: {to_canonical(entity): values[key] for entity, values in entities.items() if key in values}
            for key in ALL_QUOTAS
        }
        self._found.clear()

    def meter(self, key: str, client: Client) -> Meter | None:
        """Return the meter that counts a client's use, or None if no quota of this kind applies to it."""
        limits = self._limits[key]
        if not limits:
            return None
        if (key, client) in self._found:
            return self._found[key, client]
        if len(self._found) >= MAX_METERS:
            self._found.clear()
        meter = self._found[key, client] = self._look_up(key, client, limits)
        return meter

    def _look_up(self, key: str, client: Client, limits: Mapping[Entity, float]) -> Meter | None:
        for entity, sharers in candidates(client) if key != CONNECTION else addresses(client):
            limit = limits.get(entity)
            if limit is None:
                continue
            meter = self._meters.get((key, sharers))
            if meter is None:
                if len(self._meters) >= self._max_meters:
                    self._drop_idle()
                meter = self._meters[key, sharers] = self._new_meter(key, limit)
            meter.limit = limit
            return meter
        return None

    def _new_meter(self, key: str, limit: float) -> Meter:
        if key == MUTATION:
            return TokenBucket(self._controller_window, limit, self.monotonic_ms())
        return Rate(self._window, limit)

    def _drop_idle(self) -> None:
        now_ms = self.monotonic_ms()
        self._meters = {found: meter for found, meter in self._meters.items() if not meter.is_idle(now_ms)}
        self._max_meters = max(MAX_METERS, 2 * len(self._meters))
        self._found.clear()

    def record(self, key: str, client: Client, value: float) -> int:
        """Count what a client used. Returns how long it has to wait, in whole milliseconds."""
        meter = self.meter(key, client)
        if meter is None:
            return 0
        now_ms = self.monotonic_ms()
        meter.record(value, now_ms)
        return compute_wait_ms(meter, now_ms)

    def record_request(self, client: Client, seconds: float) -> int:
        """Count seconds of the loop's thread, each as 100. Returns the wait, at most the length of one sample
        (KIP-124)."""
        return min(self.record(REQUEST, client, 100 * seconds), self._window.sample_ms)

    def record_fetch(self, client: Client, size: int) -> int:
        """Count the bytes of a fetch response, and return its wait. A response that has to wait is not sent and not
        counted.

        A response that exceeds the quota by itself is sent if the window has no other response. Otherwise it could
        never be sent.
        """
        meter = self.meter(FETCH, client)
        if not isinstance(meter, Rate):
            return 0
        now_ms = self.monotonic_ms()
        is_first = not meter.total(now_ms)
        meter.record(size, now_ms)
        wait_ms = 0 if is_first else compute_wait_ms(meter, now_ms)
        if wait_ms:
            meter.record(-size, now_ms)
        return wait_ms

    def take_back_fetch(self, client: Client, size: int) -> None:
        """Undo the counting of a fetch response that was not sent after all."""
        meter = self.meter(FETCH, client)
        if meter is not None:
            meter.record(-size, self.monotonic_ms())

    def record_connection(self, host: str) -> int:
        """Count a new connection of an address. Returns 0 to serve the connection, else the ms to hold it before it is
        closed."""
        client = ("", host)
        wait_ms = self.record(CONNECTION, client, 1)
        wait_ms = min(wait_ms, self._window.sample_ms)
        if wait_ms:
            self.note_wait(CONNECTION, wait_ms)
            self.record(CONNECTION, client, -1)
        return wait_ms

    def note_wait(self, key: str, wait_ms: int) -> None:
        """Count a wait of ``wait_ms`` that the quota ``key`` imposes on a client."""
        self.waits[key].note(wait_ms, self.monotonic_ms())

    def fetch_limit(self, client: Client) -> int | None:
        """Return the most bytes of a response that does not exceed the fetch quota by itself; None without a quota."""
        meter = self.meter(FETCH, client)
        if meter is None:
            return None
        return max(int(meter.limit * (self._window.length_ms - self._window.sample_ms) / 1000), 1)


def candidates(client: Client) -> Iterable[tuple[Entity, Client]]:
    """Yield the entities that may have a client's quota, the most specific first, each with the key of its meter: the
    part of the client by which the quota is shared.
    """
    user, client_id = client
    for user_name in (user, None):
        yield ((CLIENT_ID, client_id), (USER, user_name)), client
        yield ((CLIENT_ID, None), (USER, user_name)), client
        yield ((USER, user_name),), (user, "")
    yield ((CLIENT_ID, client_id),), ("", client_id)
    yield ((CLIENT_ID, None),), ("", client_id)


def to_canonical(entity: Entity) -> Entity:
    """Return an entity with its address, if it is one, in the spelling that sockets have."""
    kind, name = entity[0]
    if kind != IP or name is None:
        return entity
    from tidelog.broker.security.client_address import to_canonical_address  # only quotas of addresses need it

    return ((IP, to_canonical_address(name)),)


def addresses(client: Client) -> Iterable[tuple[Entity, Client]]:
    """Yield the entities that may have the quota of an address, which ``client`` has in place of the client id."""
    yield ((IP, client[1]),), client
    yield ((IP, None),), client


def client_of(context: RequestContext) -> Client:
    """Return the user and the client id of a request."""
    return context.principal.name, context.client_id or ""


def throttled_samples(quotas: Quotas) -> Iterable[Sample]:
    """Yield metrics of throttling, each request under the quota with its longest wait. The last metric is Kafka's
    ``queue-size``."""
    now_ms = quotas.monotonic_ms()
    for key, waits in quotas.waits.items():
        yield Sample(f"{_METRIC}_throttled_total", "counter", {"quota": key}, waits.count)
    for key, waits in quotas.waits.items():
        yield Sample(f"{_METRIC}_throttle_seconds_total", "counter", {"quota": key}, waits.total_ms / 1000)
    for key, waits in quotas.waits.items():
        yield Sample(f"{_METRIC}_queue_size", "gauge", {"quota": key}, waits.count_open(now_ms))


class MutationQuota:
    """The controller mutation quota as one request uses it. Without a quota there is no limit."""

    __slots__ = ("_client", "_context", "_is_strict", "_quotas")

    def __init__(self, quotas: Quotas | None, context: RequestContext, *, strict: bool) -> None:
        self._quotas = quotas
        self._context = context
        self._client = client_of(context)
        self._is_strict = strict

    def check(self) -> None:
        """Raise ThrottlingQuotaExceededError if the client must wait and its version knows that error; older versions
        only wait."""
        if self._quotas is None or not self._is_strict:
            return
        meter = self._quotas.meter(MUTATION, self._client)
        wait_ms = 0 if meter is None else compute_wait_ms(meter, self._quotas.monotonic_ms())
        if wait_ms:
            self._wait(wait_ms)
            raise ThrottlingQuotaExceededError

    def record(self, partitions: int) -> None:
        """Count ``partitions`` as created or deleted."""
        if self._quotas is None:
            return
        wait_ms = self._quotas.record(MUTATION, self._client, partitions)
        if wait_ms and not self._is_strict:
            self._wait(wait_ms)

    def _wait(self, wait_ms: int) -> None:
        self._context.throttle_ms = max(self._context.throttle_ms, wait_ms)


def mutation_quota(broker: Broker, context: RequestContext, *, strict_since: int) -> MutationQuota:
    """Return the quota of this request; versions from ``strict_since`` on know THROTTLING_QUOTA_EXCEEDED."""
    return MutationQuota(broker.services.quotas.made, context, strict=context.api_version >= strict_since)


def quotas_of_image(broker: Broker) -> Quotas:
    """Build the client quotas of the metadata image."""
    number = broker.config.get_int
    return Quotas(
        broker.controller.image.quotas,
        monotonic_ms=broker.time.monotonic_ms,
        window=Window(number("quota.window.num"), number("quota.window.size.seconds") * 1000),
        controller_window=Window(
            number("controller.quota.window.num"), number("controller.quota.window.size.seconds") * 1000
        ),
    )
