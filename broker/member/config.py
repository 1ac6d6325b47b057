"""Configuration of a member, checked before anything is opened: controllers, its own endpoints, times, security."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.broker.cluster.fetching.work import FetcherConfig
from tidelog.broker.cluster.quorum import Address
from tidelog.broker.config.broker_config import MAX_PORT, UNROUTABLE, BrokerConfig, invalid_value_error
from tidelog.broker.config.broker_config import Endpoint as Listener
from tidelog.broker.member.connections.frame_link import MAX_FRAME_BYTES, MAX_RESPONSE_BYTES
from tidelog.broker.member.connections.security import PeerSecurity, broker_security, controller_security
from tidelog.broker.metadata.metadata_image import Endpoint
from tidelog.broker.metrics.rates import Window
from tidelog.broker.replica.replication.quotas import FOLLOWER, LEADER, ReplicationQuota, ReplicationQuotas
from tidelog.protocol.config_def import ConfigError

SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
BOOTSTRAP = "controller.quorum.bootstrap.servers"
VOTERS = "controller.quorum.voters"
MAX_RECORDS_BYTES = MAX_FRAME_BYTES - MAX_RESPONSE_BYTES
"""Most bytes of records that a fetch asks for. The rest of a frame is left for the other fields of the answer."""


class ControllerTimeouts(NamedTuple):
    """Timeouts of requests to controllers, in s.

    The timeout of a heartbeat is half a broker session at most, so that the next heartbeat can still keep the session.
    Source: BrokerServer of Kafka 4.3.
    """

    heartbeat_s: float
    metadata_s: float
    other_s: float


class MemberConfig(NamedTuple):
    """Configuration of a member: controllers, the endpoints that it registers, times in ms, security of its
    connections.
    """

    controllers: tuple[Address, ...]
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    heartbeat_interval_ms: int
    registration_timeout_ms: int
    replica_lag_time_max_ms: int
    replica_fetchers: int
    replica_socket_timeout_ms: int
    directory_failure_timeout_ms: int
    timeouts: ControllerTimeouts
    controller_security: PeerSecurity
    broker_security: PeerSecurity


def member_config(config: BrokerConfig) -> MemberConfig:
    """Return the configuration of a member; reads TLS stores. Raises ConfigError, OSError."""
    if not {"node.id", "broker.id"} & config.static_texts.keys():
        raise ConfigError("process.roles=broker needs a node.id, which is unique in the cluster")
    return MemberConfig(
        controllers=controller_addresses(config),
        endpoints=tuple(own_endpoint(listener, config) for listener in config.listeners),
        rack=config.get("broker.rack"),
        heartbeat_interval_ms=config.get_int("broker.heartbeat.interval.ms"),
        registration_timeout_ms=config.get_int("initial.broker.registration.timeout.ms"),
        replica_lag_time_max_ms=config.get_int("replica.lag.time.max.ms"),
        replica_fetchers=config.get_int("num.replica.fetchers"),
        replica_socket_timeout_ms=config.get_int("replica.socket.timeout.ms"),
        directory_failure_timeout_ms=config.get_int("log.dir.failure.timeout.ms"),
        timeouts=controller_timeouts(config),
        controller_security=controller_security(config),
        broker_security=broker_security(config),
    )


def controller_timeouts(config: BrokerConfig) -> ControllerTimeouts:
    """Return the timeouts of requests to controllers."""
    socket_ms = config.get_int("controller.socket.timeout.ms")
    return ControllerTimeouts(
        heartbeat_s=min(socket_ms, config.get_int("broker.session.timeout.ms") // 2) / 1000,
        metadata_s=config.get_int("controller.quorum.request.timeout.ms") / 1000,
        other_s=socket_ms / 1000,
    )


def fetcher_config(config: BrokerConfig, broker_epoch: int) -> FetcherConfig:
    """Return the settings of a member's fetch loops."""
    return FetcherConfig(
        replica_id=config.node_id,
        broker_epoch=broker_epoch,
        max_wait_ms=config.get_int("replica.fetch.wait.max.ms"),
        min_bytes=config.get_int("replica.fetch.min.bytes"),
        partition_max_bytes=config.get_int("replica.fetch.max.bytes"),
        response_max_bytes=min(config.get_int("replica.fetch.response.max.bytes"), MAX_RECORDS_BYTES),
        backoff_ms=config.get_int("replica.fetch.backoff.ms"),
    )


def controller_addresses(config: BrokerConfig) -> tuple[Address, ...]:
    """Return the addresses of the controllers that the configuration names. Raises ConfigError."""
    servers = config.get_list(BOOTSTRAP)
    if servers:
        return tuple(address_of(BOOTSTRAP, server, server) for server in servers)
    voters = config.get_list(VOTERS)
    if not voters:
        raise invalid_value_error(BOOTSTRAP, "", "HOST:PORT of the controllers, separated by commas")
    return tuple(address_of(VOTERS, voter, voter.partition("@")[2]) for voter in voters)


def address_of(key: str, entry: str, text: str) -> Address:
    """Parse HOST:PORT. Raises ConfigError, which names the key and the entry."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) <= MAX_PORT:
        raise invalid_value_error(key, entry, "HOST:PORT of a controller")
    return Address(host.strip("[]"), int(port))


def replication_quotas(config: BrokerConfig) -> ReplicationQuotas:
    """Return the throttles of replication; their limits follow the configuration."""
    seconds = config.get_int("replication.quota.window.size.seconds")
    window = Window(config.get_int("replication.quota.window.num"), 1000 * seconds)
    return ReplicationQuotas(
        ReplicationQuota(LEADER, config.node_id, window, lambda: config.get_int("leader.replication.throttled.rate")),
        ReplicationQuota(
            FOLLOWER, config.node_id, window, lambda: config.get_int("follower.replication.throttled.rate")
        ),
    )


def own_endpoint(listener: Listener, config: BrokerConfig) -> Endpoint:
    """Return the endpoint that is registered for a listener. Raises ConfigError if other brokers cannot reach it."""
    advertised = config.advertised_listeners.get(listener.listener_name, listener)
    if not advertised.host or advertised.host in UNROUTABLE:
        raise invalid_value_error("advertised.listeners", str(advertised), "an address that other brokers can reach")
    if not advertised.port:
        raise invalid_value_error("listeners", str(advertised), "a port: a member registers it before it listens")
    return Endpoint(
        advertised.listener_name, advertised.host, advertised.port, SECURITY_PROTOCOLS[listener.security_protocol]
    )
