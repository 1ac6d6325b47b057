"""Gauges of a server's own parts, named after Kafka's MBeans. Loop thread only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.metrics.clients import ConnectedClient
from tidelog.broker.metrics.log_metrics import log_manager_samples
from tidelog.broker.metrics.registry import Sample
from tidelog.broker.network.shell import Shell
from tidelog.broker.requests.dispatch import Dispatcher


def register_metrics(broker: Broker, shell: Shell, dispatcher: Dispatcher) -> None:
    """Register the gauges of the server's own parts."""
    metrics = broker.metrics
    broker.clients.add_source(partial(connected_clients, shell), lambda: len(shell.connections))
    metrics.add_source(partial(count_requests, dispatcher))
    metrics.add_source(partial(count_throttled, broker))
    metrics.add_source(broker.timers.turns.samples)
    metrics.add_gauge("kafka_server_socket_connection_count", lambda: len(shell.connections))
    metrics.add_gauge("kafka_network_socketserver_memorypoolused", lambda: shell.memory.held_bytes)
    metrics.add_gauge("kafka_server_delayedoperationpurgatory_purgatorysize", lambda: len(broker.purgatory))
    metrics.add_gauge("kafka_server_delayedoperationpurgatory_expired", lambda: broker.purgatory.expired_total)
    metrics.add_gauge("kafka_server_fetchsessioncache_sessions", lambda: len(broker.fetch_sessions.sessions))
    metrics.add_gauge("kafka_server_fetchsessioncache_partitions", broker.fetch_sessions.partition_count)
    metrics.add_gauge("kafka_server_fetchsessioncache_evictions", lambda: broker.fetch_sessions.evictions_total)
    publishers = broker.controller.publishers
    metrics.add_gauge(
        "kafka_server_broker_metadata_metrics_metadata_apply_error_count", lambda: publishers.errors_total
    )
    metrics.add_gauge("kafka_controller_globaltopiccount", lambda: len(broker.metadata.topics))
    authorizer = broker.authorizer
    if authorizer is not None:
        metrics.add_gauge("kafka_server_authorizer_acls_total_count", lambda: len(authorizer.rules))
        metrics.add_gauge("kafka_server_authorizer_authorization_denied_total", lambda: authorizer.denied_total)
    metrics.add_shared_source(partial(log_manager_samples, broker.log_manager))


def connected_clients(shell: Shell) -> Iterator[ConnectedClient]:
    """Yield a description of each open connection."""
    now_ms = shell.monotonic_ms()
    for connection in shell.connections:
        context = connection.context
        yield ConnectedClient(
            context.client_id, str(context.principal), context.client_host, context.listener_name, context.api_key,
            context.api_version, max(0.0, now_ms - connection.last_active_ms),
        )  # fmt: skip


def count_requests(dispatcher: Dispatcher) -> Iterable[Sample]:
    """Count requests by API. Only the admin interface collects metrics, so its ``request_samples`` is imported late."""
    from tidelog.broker.admin.prometheus import request_samples

    return request_samples(dispatcher.routes())


def count_throttled(broker: Broker) -> Iterable[Sample]:
    """Count throttled requests. Without client quotas there are none, and nothing is imported."""
    quotas = broker.services.quotas.made
    if quotas is None:
        return ()
    from tidelog.broker.quota.quotas import throttled_samples

    return throttled_samples(quotas)
