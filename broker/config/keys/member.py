"""Configuration keys of a node that is a broker of a cluster (``process.roles=broker``); a lone node has them, too.

``controller.listener.names`` and ``listeners`` are declared in ``keys/broker.py``.
"""

from __future__ import annotations

from tidelog.log.config import MAX_LONG
from tidelog.protocol.config_def import ConfigKey, ConfigType, Importance, between, one_of

HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
INT, LONG, LIST, STRING = ConfigType.INT, ConfigType.LONG, ConfigType.LIST, ConfigType.STRING
CLASS = ConfigType.CLASS
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

# fmt: off
MEMBER_KEYS = (
    ConfigKey("process.roles", LIST, None, None, HIGH,
        "broker: a member of the cluster of controller.quorum.bootstrap.servers. Not set, or broker,controller with "
        "this node as only voter: a lone node, its own quorum. Controllers of a cluster are Apache Kafka's."),
    ConfigKey("controller.quorum.bootstrap.servers", LIST, None, None, HIGH,
        "The controllers of a member's cluster: HOST:PORT, separated by commas. Name all of them."),
    ConfigKey("controller.quorum.voters", LIST, None, None, HIGH,
        "The controllers of a member's cluster with their ids: ID@HOST:PORT, separated by commas; read by a member "
        "that has no controller.quorum.bootstrap.servers."),
    ConfigKey("inter.broker.listener.name", STRING, None, None, MEDIUM,
        "The listener over which the brokers of a cluster reach each other; by default the one whose name is the "
        "value of security.inter.broker.protocol. It must be one of this broker's own listeners."),
    ConfigKey("security.inter.broker.protocol", STRING, "PLAINTEXT", one_of(*PROTOCOLS), MEDIUM,
        "The security protocol between brokers, where inter.broker.listener.name is not set."),
    ConfigKey("sasl.mechanism.inter.broker.protocol", STRING, "GSSAPI", None, MEDIUM,
        "The mechanism with which a member logs in to other brokers: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. User and "
        "password are the options username and password of that listener's sasl.jaas.config."),
    ConfigKey("sasl.mechanism.controller.protocol", STRING, "GSSAPI", None, HIGH,
        "The mechanism with which a member logs in to the controllers, as sasl.mechanism.inter.broker.protocol; the "
        "sasl.jaas.config is that of the first of controller.listener.names."),
    ConfigKey("broker.heartbeat.interval.ms", INT, 2000, between(1), MEDIUM,
        "How often a member tells the active controller that it is alive. The controllers take it for dead after their "
        "broker.session.timeout.ms."),
    ConfigKey("broker.session.timeout.ms", INT, 9000, between(2), MEDIUM,
        "The session timeout of a member. It must be the same as on the controllers, which enforce it. A member gives "
        "up an unanswered heartbeat after half of it, and sends another."),
    ConfigKey("controller.socket.timeout.ms", INT, 30_000, between(1), MEDIUM,
        "How long a member waits for a controller's answer; for a heartbeat's, at most half of "
        "broker.session.timeout.ms. When another controller becomes active, it stops waiting for the former one."),
    ConfigKey("controller.quorum.request.timeout.ms", INT, 2000, between(1), MEDIUM,
        "How long a member waits for a controller's answer when it fetches the metadata; then it asks another one."),
    ConfigKey("log.dir.failure.timeout.ms", LONG, 30_000, between(1), MEDIUM,
        "How long a member goes on while no controller has confirmed the failure of a log directory; then it stops."),
    ConfigKey("num.replica.fetchers", INT, 1, between(1), HIGH,
        "How many connections to each leader a member fetches over. A partition always uses the same one."),
    ConfigKey("replica.fetch.wait.max.ms", INT, 500, between(0), HIGH,
        "How long a leader may delay its answer to a follower while it has less than replica.fetch.min.bytes. The "
        "value should be less than replica.lag.time.max.ms."),
    ConfigKey("replica.fetch.min.bytes", INT, 1, between(0), HIGH,
        "The fewest bytes of records with which a leader answers a follower before replica.fetch.wait.max.ms is over."),
    ConfigKey("replica.fetch.max.bytes", INT, 1024 * 1024, between(0), MEDIUM,
        "The most bytes of a partition's records in one answer to a follower. A larger batch is sent alone."),
    ConfigKey("replica.fetch.response.max.bytes", INT, 10 * 1024 * 1024, between(0), MEDIUM,
        "The most bytes of records in one answer to a follower, which is in memory while they are appended."),
    ConfigKey("replica.fetch.backoff.ms", INT, 1000, between(0), MEDIUM,
        "The longest pause after an error before a follower fetches a partition, or from a leader, again; the first "
        "is 50 ms."),
    ConfigKey("replica.selector.class", CLASS, None, one_of(None, "", RACK_AWARE), MEDIUM,
        "Which replica a consumer is told to read from. Not set: the leader. RackAwareReplicaSelector: one in the "
        "consumer's rack, whose broker.rack is its client.rack."),
    ConfigKey("replica.socket.timeout.ms", INT, 30_000, between(1), HIGH,
        "How long a follower waits for an answer. The value should be at least replica.fetch.wait.max.ms."),
    ConfigKey("initial.broker.registration.timeout.ms", INT, 60_000, between(1), MEDIUM,
        "How long the start of a member waits until the active controller has registered it."),
    ConfigKey("replica.lag.time.max.ms", LONG, 30_000, between(1), HIGH,
        "How long a follower in a cluster may lack records of its leader before it leaves the in-sync replicas."),
    ConfigKey("leader.replication.throttled.rate", LONG, MAX_LONG, between(0), MEDIUM,
        "Bytes a second that this broker, a member of a cluster, sends to the followers that topics name in "
        "leader.replication.throttled.replicas. kafka-reassign-partitions --throttle sets it.", dynamic=True),
    ConfigKey("follower.replication.throttled.rate", LONG, MAX_LONG, between(0), MEDIUM,
        "Bytes a second that this broker, a member of a cluster, fetches for its replicas that topics name in "
        "follower.replication.throttled.replicas.", dynamic=True),
    ConfigKey("replication.quota.window.num", INT, 11, between(1), LOW,
        "Samples kept to measure the rates of throttled replicas."),
    ConfigKey("replication.quota.window.size.seconds", INT, 1, between(1), LOW,
        "Length of a sample of the rates of throttled replicas."),
)
# fmt: on
