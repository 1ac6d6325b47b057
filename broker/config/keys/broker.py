"""The broker's own configuration keys: one row each, under Kafka's names.

Topic-level keys are declared in ``log/config.py``; the server keys that give them their defaults (``log.retention.ms``,
``message.max.bytes``) are derived from them here. The cleaner declares its own in ``cleaner/config.py``;
``broker/config/broker_config.py`` puts the tables together. Some defaults differ from Kafka's. With Kafka's, a single
node would not work (replication factors of internal topics), and would be open to the network unasked (``listeners``).
It would keep groups waiting (assignment intervals), and its memory would have no bound (``queued.max.request.bytes``).

A test checks that some code reads each declared key, unless all allowed values of the key mean the same.

``NO_EFFECT`` has keys of Kafka for things that Tidelog does not have: Tidelog starts with a server.properties written
for Kafka, and logs once which keys have no effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.broker.config.keys.member import MEMBER_KEYS
from tidelog.log.config import SYNONYMS, TOPIC_CONFIG_DEF
from tidelog.log.system.reserve import DEFAULT_RESERVE_BYTES
from tidelog.protocol.config_def import Check, ConfigKey, ConfigType, Importance, between, one_of

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DEFAULT_LISTENERS = "PLAINTEXT://127.0.0.1:9092"

HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
BOOLEAN, STRING, INT, SHORT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.SHORT
LONG, LIST = ConfigType.LONG, ConfigType.LIST
ASSIGNOR_PACKAGE = "org.apache.kafka.coordinator.group.assignor."


def are_assignors(names: Sequence[str]) -> bool:
    """Return whether these are Kafka's server-side assignors, by name or by class."""
    allowed = {"uniform", "range", f"{ASSIGNOR_PACKAGE}UniformAssignor", f"{ASSIGNOR_PACKAGE}RangeAssignor"}
    return 0 < len(names) == len(set(names)) and allowed.issuperset(names)


def is_directory_mode(text: str) -> bool:
    """Return whether this is an octal mode that lets the owner do everything."""
    return len(text) in (3, 4) and set(text) <= set("01234567") and int(text, 8) & ~0o077 == 0o700


def are_limits(text: str) -> bool:
    """Return whether each entry of a list is an address and a number of connections."""
    entries = [entry.strip().rpartition(":") for entry in text.split(",") if entry.strip()]
    return all(address and count.isascii() and count.isdigit() for address, _, count in entries)


IS_DIRECTORY_MODE = Check(is_directory_mode, "an octal mode from 0700 to 0777")


# fmt: off
NODE_KEYS = (
    ConfigKey("node.id", INT, 1, between(0), HIGH,
        "The id of this node, unique in its cluster; also written broker.id."),
    ConfigKey("broker.id", INT, -1, None, HIGH, "The older name of node.id; used when node.id is not set."),
    ConfigKey("config.providers", LIST, None, None, LOW,
        "Names for providers of secrets, each with its class: config.providers.NAME.class, and what it may read: "
        "config.providers.NAME.param.allowed.paths or .allowlist.pattern. Default: file, dir and env, without limits."),
    ConfigKey("broker.rack", STRING, None, None, MEDIUM,
        "The rack or zone of this broker, for the placement of replicas and for consumers that read from the nearest "
        "one."),
    ConfigKey("log.dirs", LIST, None, None, HIGH,
        "Directories that hold partitions; the first also holds a lone node's metadata log. Default: log.dir."),
    ConfigKey("log.dir", STRING, "data", None, HIGH, "The directory that holds partitions when log.dirs is not set."),
    ConfigKey("cordoned.log.dirs", LIST, [], None, MEDIUM,
        "Directories of log.dirs in which no new log is created while another one works (KIP-1066); *: all. From "
        "metadata.version 4.3-IV0 on it is dynamic, and no partition is placed on a broker whose directories are all "
        "cordoned.",
        dynamic=True),
    ConfigKey("metadata.log.dir", STRING, None, None, HIGH,
        "The directory of the metadata log. A lone node keeps it in the first of log.dirs, and refuses any other; a "
        "member of a cluster has no such log."),
    ConfigKey("log.dirs.mode", STRING, "0700", IS_DIRECTORY_MODE, MEDIUM,
        "The mode of the directories created in log.dirs, in octal, whatever the umask; files get it without "
        "execution. 0750 lets a group read the records, such as Spark's. The metadata log's directory is 0700 "
        "always. Existing files and directories keep their mode. Tidelog's own key."),
    ConfigKey("log.dirs.reserve.bytes", INT, DEFAULT_RESERVE_BYTES, between(0), MEDIUM,
        "The size of the file .reserve that each data directory keeps. A full disk gives it up, so that topics can be "
        "deleted. At most a sixteenth of the file system; 0: none. Tidelog's own key."),
    ConfigKey("cluster.id", STRING, None, None, MEDIUM,
        "The id of the cluster, 22 characters of base64; generated at the first start if it is not given. A "
        "directory of another cluster is refused."),
    ConfigKey("background.threads", INT, 10, between(1), HIGH,
        "The most threads for work that would hold up the loop: flushing, cold reads, retention."),
    ConfigKey("num.recovery.threads.per.data.dir", INT, 2, between(1), HIGH,
        "Threads per data directory that recover logs at a start; a value set by the admin API counts at the next "
        "start.", dynamic=True),
)

SOCKET_KEYS = (
    ConfigKey("listeners", STRING, DEFAULT_LISTENERS, None, HIGH,
        "Where to listen: NAME://HOST:PORT, separated by commas. An empty host or 0.0.0.0 means all interfaces, port "
        "0 a free port."),
    ConfigKey("advertised.listeners", STRING, None, None, HIGH,
        "The addresses told to clients, by listener name. When not set, each client is told the address at which it "
        "reached the broker."),
    ConfigKey("controller.listener.names", LIST, None, None, LOW,
        "Names of the controllers' listeners. None of them is opened here; a member reaches its controllers by the "
        "protocol of the first."),
    ConfigKey("listener.security.protocol.map", STRING,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL", None, LOW,
        "The security protocol of each listener name: NAME:PROTOCOL, separated by commas."),
    ConfigKey("socket.request.max.bytes", INT, 100 * 1024 * 1024, between(1), HIGH,
        "The largest request accepted, in bytes; a longer one closes its connection."),
    ConfigKey("socket.send.buffer.bytes", INT, -1, between(-1), HIGH,
        "SO_SNDBUF of client sockets; -1: the system's, which grows with the connection."),
    ConfigKey("socket.receive.buffer.bytes", INT, -1, between(-1), HIGH,
        "SO_RCVBUF of client sockets; -1: the system's, which grows with the connection."),
    ConfigKey("socket.busy.poll.us", INT, 150, between(0, 10_000), LOW,
        "When a client sends each request within so many microseconds of its last one, the broker waits so long for "
        "the next one without sleeping. 0: it always sleeps. Tidelog's own key."),
    ConfigKey("socket.listen.backlog.size", INT, 50, between(1), MEDIUM,
        "Connections that may wait to be accepted. When not set, the system's maximum."),
    ConfigKey("max.connections", INT, INT_MAX, between(0), MEDIUM,
        "The most connections of all listeners at one time; further ones are not accepted until one closes. Single "
        "listeners have no limits of their own.", dynamic=True),
    ConfigKey("max.connections.per.ip", INT, INT_MAX, between(0), MEDIUM,
        "The most connections from one address; further ones are closed at once.", dynamic=True),
    ConfigKey("max.connections.per.ip.overrides", STRING, "",
        Check(are_limits, "ADDRESS:COUNT, separated by commas"), MEDIUM,
        "Limits that differ from max.connections.per.ip: ADDRESS:COUNT, separated by commas. A host name stands for "
        "the addresses that it has when the key is set; the log names one that cannot be resolved.", dynamic=True),
    ConfigKey("max.connection.creation.rate", INT, INT_MAX, between(1), MEDIUM,
        "The most connections accepted per second, by all listeners; further ones wait in the backlog. For one "
        "address there is the quota connection_creation_rate of an ip.", dynamic=True),
    ConfigKey("connections.max.idle.ms", LONG, 600_000, None, MEDIUM,
        "A connection on which nothing happened for this long is closed; negative: never."),
    ConfigKey("queued.max.request.bytes", LONG, 100 * 1024 * 1024, None, MEDIUM,
        "The most bytes of partly received requests, over all connections. Beyond it, requests of 64 KiB and more "
        "are read one at a time; smaller ones are still read at once. One request of socket.request.max.bytes is "
        "always possible. -1: no limit, which is Kafka's default."),
)

TOPIC_KEYS = (
    ConfigKey("num.partitions", INT, 1, between(1), MEDIUM, "Partitions of a topic created without a count."),
    ConfigKey("default.replication.factor", INT, 1, between(1), MEDIUM,
        "Replicas of a topic created without a factor."),
    ConfigKey("auto.create.topics.enable", BOOLEAN, True, None, HIGH,
        "Whether a topic is created when a client asks for its metadata, as producers do first."),
    ConfigKey("delete.topic.enable", BOOLEAN, True, None, HIGH, "Whether topics may be deleted."),
    ConfigKey("log.retention.check.interval.ms", LONG, 300_000, between(1), MEDIUM,
        "How often logs are checked for segments past their retention."),
    ConfigKey("log.flush.scheduler.interval.ms", LONG, LONG_MAX, None, HIGH,
        "How often logs are checked for a flush.ms that has passed; at least once a second."),
    ConfigKey("log.flush.offset.checkpoint.interval.ms", INT, 60_000, between(0), HIGH,
        "How often recovery points are written to recovery-point-offset-checkpoint."),
    ConfigKey("log.flush.start.offset.checkpoint.interval.ms", INT, 60_000, between(0), HIGH,
        "How often log start offsets are written to log-start-offset-checkpoint."),
    ConfigKey("replica.high.watermark.checkpoint.interval.ms", LONG, 5_000, between(1), HIGH,
        "How often high watermarks are written to replication-offset-checkpoint."),
    ConfigKey("fetch.max.bytes", INT, 55 * 1024 * 1024, between(1024), MEDIUM, "The most bytes in one fetch response."),
    ConfigKey("max.incremental.fetch.session.cache.slots", INT, 1000, between(0), MEDIUM,
        "The most incremental fetch sessions kept (KIP-227)."),
    ConfigKey("max.request.partition.size.limit", INT, 2000, between(1), MEDIUM,
        "The most partitions in one DescribeTopicPartitions response."),
    ConfigKey("quota.window.num", INT, 11, between(1), LOW,
        "Samples kept to measure the rate of a client with a quota."),
    ConfigKey("quota.window.size.seconds", INT, 1, between(1), LOW, "Length of a sample of a client with a quota."),
    ConfigKey("controller.quota.window.num", INT, 11, between(1), LOW,
        "Samples in the window of a client's quota of partitions created and deleted. At most one window's quota can "
        "be saved up for a burst."),
    ConfigKey("controller.quota.window.size.seconds", INT, 1, between(1), LOW,
        "Length of a sample of a client's quota of partitions created and deleted."),
    ConfigKey("telemetry.max.bytes", INT, 1024 * 1024, between(1), LOW,
        "The most bytes of metrics a client may push at once."),
)

GROUP_KEYS = (
    ConfigKey("group.min.session.timeout.ms", INT, 6_000, None, MEDIUM,
        "The shortest session timeout of a classic member."),
    ConfigKey("group.max.session.timeout.ms", INT, 1_800_000, None, MEDIUM,
        "The longest session timeout of a classic member."),
    ConfigKey("group.initial.rebalance.delay.ms", INT, 0, between(0), MEDIUM,
        "How long a new group waits for more members before its first rebalance. Kafka's default is 3000; the "
        "server.properties that it ships sets 0."),
    ConfigKey("group.max.size", INT, INT_MAX, between(1), MEDIUM, "The most members of a classic group."),
    ConfigKey("group.consumer.session.timeout.ms", INT, 45_000, between(1), MEDIUM,
        "How long a member of a consumer group (KIP-848) may be silent before it is removed."),
    ConfigKey("group.consumer.min.session.timeout.ms", INT, 45_000, between(1), MEDIUM,
        "The shortest session timeout a consumer group may be given."),
    ConfigKey("group.consumer.max.session.timeout.ms", INT, 60_000, between(1), MEDIUM,
        "The longest session timeout a consumer group may be given."),
    ConfigKey("group.consumer.heartbeat.interval.ms", INT, 5_000, between(1), MEDIUM,
        "How often members of a consumer group are told to send a heartbeat."),
    ConfigKey("group.consumer.min.heartbeat.interval.ms", INT, 5_000, between(1), MEDIUM,
        "The shortest heartbeat interval a consumer group may be given."),
    ConfigKey("group.consumer.max.heartbeat.interval.ms", INT, 15_000, between(1), MEDIUM,
        "The longest heartbeat interval a consumer group may be given."),
    ConfigKey("group.consumer.max.size", INT, INT_MAX, between(1), MEDIUM, "The most members of a consumer group."),
    ConfigKey("group.consumer.assignors", LIST, ("uniform", "range"),
        Check(are_assignors, "uniform and range, each once at most"), MEDIUM,
        "Server-side assignors; the first is used when a member names none."),
    ConfigKey("group.consumer.migration.policy", STRING, "bidirectional",
        one_of("bidirectional", "upgrade", "downgrade", "disabled"), MEDIUM,
        "Whether a group with members may move between the classic and the consumer protocol."),
    ConfigKey("group.consumer.assignment.interval.ms", INT, 0, between(0), MEDIUM,
        "How old the assignment of a consumer group must be before another is computed. Kafka's default is 1000.",
        dynamic=True),
    ConfigKey("group.consumer.min.assignment.interval.ms", INT, 0, between(0), MEDIUM,
        "The shortest assignment interval a consumer group may be given."),
    ConfigKey("group.consumer.max.assignment.interval.ms", INT, 15_000, between(0), MEDIUM,
        "The longest assignment interval a consumer group may be given."),
    ConfigKey("group.share.max.size", INT, 200, between(1, 1000), MEDIUM, "The most members of a share group."),
    ConfigKey("group.share.session.timeout.ms", INT, 45_000, between(1), MEDIUM,
        "How long a member of a share group may be silent before it is removed."),
    ConfigKey("group.share.min.session.timeout.ms", INT, 45_000, between(1), MEDIUM,
        "The shortest session timeout a share group may be given."),
    ConfigKey("group.share.max.session.timeout.ms", INT, 60_000, between(1), MEDIUM,
        "The longest session timeout a share group may be given."),
    ConfigKey("group.share.heartbeat.interval.ms", INT, 5_000, between(1), MEDIUM,
        "How often members of a share group are told to send a heartbeat."),
    ConfigKey("group.share.min.heartbeat.interval.ms", INT, 5_000, between(1), MEDIUM,
        "The shortest heartbeat interval a share group may be given."),
    ConfigKey("group.share.max.heartbeat.interval.ms", INT, 15_000, between(1), MEDIUM,
        "The longest heartbeat interval a share group may be given."),
    ConfigKey("group.share.assignment.interval.ms", INT, 0, between(0), MEDIUM,
        "How old the assignment of a share group must be before another is computed. Kafka's default is 1000.",
        dynamic=True),
    ConfigKey("group.share.min.assignment.interval.ms", INT, 0, between(0), MEDIUM,
        "The shortest assignment interval a share group may be given."),
    ConfigKey("group.share.max.assignment.interval.ms", INT, 15_000, between(0), MEDIUM,
        "The longest assignment interval a share group may be given."),
    ConfigKey("group.share.delivery.count.limit", INT, 5, between(2, 10), MEDIUM,
        "How often a record is delivered to a share group at most."),
    ConfigKey("group.share.record.lock.duration.ms", INT, 30_000, between(1_000, 3_600_000), MEDIUM,
        "How long a share consumer holds a record it acquired."),
    ConfigKey("group.share.partition.max.record.locks", INT, 2000, between(100, 10_000), MEDIUM,
        "The most records of one share partition acquired at one time."),
    ConfigKey("group.share.min.delivery.count.limit", INT, 2, between(2, 10), MEDIUM,
        "The lowest delivery count limit a share group may be given."),
    ConfigKey("group.share.max.delivery.count.limit", INT, 10, between(5, 25), MEDIUM,
        "The highest delivery count limit a share group may be given."),
    ConfigKey("group.share.min.record.lock.duration.ms", INT, 15_000, between(1_000, 30_000), MEDIUM,
        "The shortest lock duration a share group may be given."),
    ConfigKey("group.share.max.record.lock.duration.ms", INT, 60_000, between(30_000, 3_600_000), MEDIUM,
        "The longest lock duration a share group may be given."),
    ConfigKey("group.share.min.partition.max.record.locks", INT, 100, between(100, 10_000), MEDIUM,
        "The lowest limit of acquired records a share group may be given."),
    ConfigKey("group.share.max.partition.max.record.locks", INT, 4000, between(100, 10_000), MEDIUM,
        "The highest limit of acquired records a share group may be given."),
    ConfigKey("group.share.max.share.sessions", INT, 2000, between(1), MEDIUM,
        "The most members of share groups that read at one time."),
    ConfigKey("group.streams.max.size", INT, INT_MAX, between(1), MEDIUM, "The most members of a streams group."),
    ConfigKey("group.streams.session.timeout.ms", INT, 45_000, between(1), MEDIUM,
        "How long a member of a streams group (KIP-1071) may be silent before it is removed."),
    ConfigKey("group.streams.min.session.timeout.ms", INT, 45_000, between(1), MEDIUM,
        "The shortest session timeout a streams group may be given."),
    ConfigKey("group.streams.max.session.timeout.ms", INT, 60_000, between(1), MEDIUM,
        "The longest session timeout a streams group may be given."),
    ConfigKey("group.streams.heartbeat.interval.ms", INT, 5_000, between(1), MEDIUM,
        "How often members of a streams group are told to send a heartbeat."),
    ConfigKey("group.streams.min.heartbeat.interval.ms", INT, 5_000, between(1), MEDIUM,
        "The shortest heartbeat interval a streams group may be given."),
    ConfigKey("group.streams.max.heartbeat.interval.ms", INT, 15_000, between(1), MEDIUM,
        "The longest heartbeat interval a streams group may be given."),
    ConfigKey("group.streams.assignment.interval.ms", INT, 0, between(0), MEDIUM,
        "How old the assignment of a streams group must be before another is computed. Kafka's default is 1000.",
        dynamic=True),
    ConfigKey("group.streams.min.assignment.interval.ms", INT, 0, between(0), MEDIUM,
        "The shortest assignment interval a streams group may be given."),
    ConfigKey("group.streams.max.assignment.interval.ms", INT, 15_000, between(0), MEDIUM,
        "The longest assignment interval a streams group may be given."),
    ConfigKey("group.streams.num.standby.replicas", INT, 0, between(0), MEDIUM,
        "The number of standby replicas of each state store of a streams group."),
    ConfigKey("group.streams.max.standby.replicas", INT, 2, between(0), MEDIUM,
        "The most standby replicas a streams group may be given."),
    ConfigKey("group.streams.initial.rebalance.delay.ms", INT, 3_000, between(0), MEDIUM,
        "How long a new streams group waits for more members before it assigns tasks."),
    ConfigKey("share.coordinator.state.topic.num.partitions", INT, 50, between(1), HIGH,
        "Partitions of __share_group_state; must not change once the topic exists."),
    ConfigKey("share.coordinator.state.topic.replication.factor", SHORT, 1, between(1), HIGH,
        "Replicas of __share_group_state."),
    ConfigKey("share.coordinator.state.topic.min.isr", INT, 1, between(1), HIGH,
        "min.insync.replicas of __share_group_state."),
    ConfigKey("share.coordinator.state.topic.segment.bytes", INT, 100 * 1024 * 1024, between(1), HIGH,
        "Segment size of __share_group_state."),
    ConfigKey("share.coordinator.snapshot.update.records.per.snapshot", INT, 500, between(0, 500), MEDIUM,
        "How many changes of a share partition's state are written between two snapshots of it."),
    ConfigKey("offset.metadata.max.bytes", INT, 4096, between(0), HIGH,
        "The longest metadata text of a committed offset."),
    ConfigKey("offsets.topic.num.partitions", INT, 50, between(1), HIGH,
        "Partitions of __consumer_offsets; must not change once the topic exists."),
    ConfigKey("offsets.topic.replication.factor", SHORT, 1, between(1), HIGH, "Replicas of __consumer_offsets."),
    ConfigKey("offsets.topic.segment.bytes", INT, 100 * 1024 * 1024, between(1), HIGH,
        "Segment size of __consumer_offsets."),
    ConfigKey("offsets.retention.minutes", INT, 7 * 24 * 60, between(1), HIGH,
        "How long committed offsets are kept after their group became empty."),
    ConfigKey("offsets.retention.check.interval.ms", LONG, 600_000, between(1), HIGH,
        "How often expired offsets are looked for."),
)

TRANSACTION_KEYS = (
    ConfigKey("transaction.max.timeout.ms", INT, 900_000, between(1), HIGH,
        "The longest timeout a producer may ask for."),
    ConfigKey("transactional.id.expiration.ms", INT, 7 * 24 * 3600 * 1000, between(1), HIGH,
        "How long an unused transactional id is kept."),
    ConfigKey("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, 10_000, between(1), LOW,
        "How often transactions past their timeout are looked for and aborted."),
    ConfigKey("transaction.remove.expired.transaction.cleanup.interval.ms", INT, 3_600_000, between(1), LOW,
        "How often expired transactional ids are looked for."),
    ConfigKey("transaction.state.log.num.partitions", INT, 50, between(1), HIGH,
        "Partitions of __transaction_state; must not change once the topic exists."),
    ConfigKey("transaction.state.log.replication.factor", SHORT, 1, between(1), HIGH,
        "Replicas of __transaction_state."),
    ConfigKey("transaction.state.log.min.isr", INT, 1, between(1), HIGH, "min.insync.replicas of __transaction_state."),
    ConfigKey("transaction.state.log.segment.bytes", INT, 100 * 1024 * 1024, between(1), HIGH,
        "Segment size of __transaction_state."),
    ConfigKey("transaction.partition.verification.enable", BOOLEAN, True, None, LOW,
        "Whether a transactional append is checked against its coordinator (KIP-890).", dynamic=True),
    ConfigKey("transaction.two.phase.commit.enable", BOOLEAN, False, None, LOW,
        "Kafka's key for two-phase commit (KIP-939), which is refused whatever the value."),
    ConfigKey("producer.id.expiration.ms", INT, 86_400_000, between(1), LOW,
        "How long a silent idempotent producer's state is kept."),
)

# Times whose default is another key, most in a coarser unit; the finest one that is set wins.
LOG_TIME_KEYS = (
    ConfigKey("log.retention.ms", LONG, None, None, HIGH,
        "How long segments are kept; -1: without limit. Default: log.retention.minutes.", dynamic=True),
    ConfigKey("log.retention.minutes", INT, None, None, HIGH,
        "As log.retention.ms, in minutes. Default: log.retention.hours."),
    ConfigKey("log.retention.hours", INT, 168, None, HIGH, "As log.retention.ms, in hours."),
    ConfigKey("log.roll.ms", LONG, None, None, HIGH,
        "The age at which a segment is closed even when not full. Default: log.roll.hours.", dynamic=True),
    ConfigKey("log.roll.hours", INT, 168, between(1), HIGH, "As log.roll.ms, in hours."),
    ConfigKey("log.roll.jitter.ms", LONG, None, None, HIGH,
        "The largest random part taken off log.roll.ms. Default: log.roll.jitter.hours.", dynamic=True),
    ConfigKey("log.roll.jitter.hours", INT, 0, between(0), HIGH, "As log.roll.jitter.ms, in hours."),
    ConfigKey("log.flush.interval.ms", LONG, None, None, HIGH,
        "Milliseconds after which a log is synced to disk. Default: log.flush.scheduler.interval.ms.", dynamic=True),
)


def server_keys_of_topics(declared: frozenset[str]) -> tuple[ConfigKey, ...]:
    """Declare the server keys that give topics their defaults and are not ``declared`` yet."""
    return tuple(
        ConfigKey(
            synonym.server_key,
            key.type,
            key.default,
            key.validator,
            key.importance,
            f"Default of the topics' {topic_key}. {key.doc}",
            dynamic=topic_key != "message.format.version",
        )
        for topic_key, synonyms in SYNONYMS.items()
        for synonym in synonyms
        if synonym.server_key not in declared
        for key in (TOPIC_CONFIG_DEF[topic_key],)
    )


_OWN_KEYS = NODE_KEYS + MEMBER_KEYS + SOCKET_KEYS + TOPIC_KEYS + GROUP_KEYS + TRANSACTION_KEYS + LOG_TIME_KEYS
BROKER_KEYS = _OWN_KEYS + server_keys_of_topics(frozenset(key.name for key in _OWN_KEYS))
# fmt: on

# Exact names, or prefixes when they end with a dot.
NO_EFFECT = frozenset(
    """
    alter.config.policy.class.name alter.log.dirs.replication.quota.window.num
    alter.log.dirs.replication.quota.window.size.seconds auto.include.jmx.reporter
    auto.leader.rebalance.enable broker.id.generation.enable
    client.quota.callback.class
    control.plane.listener.name controlled.shutdown.enable controlled.shutdown.max.retries
    controlled.shutdown.retry.backoff.ms controller. create.topic.policy.class.name
    delete.records.purgatory.purge.interval.requests early.start.listeners
    fetch.purgatory.purge.interval.requests
    group.consumer.regex.refresh.interval.ms group.coordinator.append.linger.ms group.coordinator.new.enable
    group.coordinator.rebalance.protocols group.coordinator.threads
    inter.broker.protocol.version kafka.metrics.polling.interval.secs
    kafka.metrics.reporters leader.imbalance.check.interval.seconds leader.imbalance.per.broker.percentage
    log.initial.task.delay.ms
    max.reserved.broker.id metadata.log. metadata.max. metric.reporters metrics.num.samples
    metrics.recording.level metrics.sample.window.ms num.io.threads num.network.threads
    num.replica.alter.log.dirs.threads offsets.commit.timeout.ms offsets.load.buffer.size
    offsets.topic.compression.codec password.encoder. producer.id.expiration.check.interval.ms
    producer.purgatory.purge.interval.requests queued.max.requests remote.log.
    replica.alter.log.dirs.io.max.bytes.per.second replica.socket.receive.buffer.bytes
    request.timeout.ms reserved.broker.max.id
    sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor server.max.startup.time.ms share.coordinator.
    socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
    ssl.protocol
    transaction.state.log.load.buffer.size unclean.leader.election.interval.ms unstable.api.versions.enable
    unstable.feature.versions.enable zookeeper.
    """.split()  # noqa: SIM905
)
