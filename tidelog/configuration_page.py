"""The generator of docs/configuration.md from the broker's own tables: ``python -m tidelog.configuration_page``.

A test generates the page again and compares it, so a key cannot change without its page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from tidelog.broker.config.keys.admin import ADMIN_KEYS
from tidelog.broker.config.keys.authorizer import AUTHORIZER_KEYS
from tidelog.broker.config.keys.broker import (
    GROUP_KEYS,
    LOG_TIME_KEYS,
    NO_EFFECT,
    NODE_KEYS,
    SOCKET_KEYS,
    TOPIC_KEYS,
    TRANSACTION_KEYS,
)
from tidelog.broker.config.keys.member import MEMBER_KEYS
from tidelog.broker.config.keys.security import (
    AUTHENTICATION_KEYS,
    KERBEROS_KEYS,
    OAUTHBEARER_KEYS,
    SASL_KEYS,
    TLS_KEYS,
)
from tidelog.broker.config.keys.token import TOKEN_KEYS
from tidelog.broker.config.resources import CLIENT_METRICS_CONFIG_DEF, GROUP_CONFIG_DEF
from tidelog.cleaner.config import CLEANER_CONFIG_DEF
from tidelog.log.config import SYNONYMS, TOPIC_CONFIG_DEF
from tidelog.protocol.config_def import NO_DEFAULT, ConfigKey

INTRODUCTION = """\
# Configuration

<!-- Made by `python -m tidelog.configuration_page > docs/configuration.md`; change the tables, not this page. -->

Keys, values and units are Apache Kafka's; a few keys are Tidelog's own. A key that is not set has its default. Some
defaults differ from Kafka's. For example, replication factors of internal topics are 1, so that one node works, and
`listeners` opens a port to this machine alone.

## Where values come from

Later ones win:

1. the defaults on this page;
2. files in Java's properties syntax: those that `TIDELOG_CONFIG_FILES` names, separated by colons, as far as they exist
   (in the container image `/etc/tidelog/server.properties` and `/mnt/shared/config/server.properties`). The file of
   `tidelog serve --config server.properties` is read after them, and wins over them;
3. environment variables, as Apache Kafka's image reads them: `KAFKA_LOG_RETENTION_MS` is `log.retention.ms`. `_` stands
   for `.`, `__` for `_`, `___` for `-`. `CLUSTER_ID` is `cluster.id`. `KAFKA_ADVERTISED_LISTENERS` without
   `KAFKA_LISTENERS` listens on their ports on all interfaces. `KAFKA_LOG4J_ROOT_LOGLEVEL` is `--log-level`;
4. `--override KEY=VALUE`, as often as needed;
5. `--data-dir`, `--host` and `--port`, which stand for `log.dirs` and for host and port of the first of `listeners`;
6. while the broker runs, what the admin API has set (`kafka-configs.sh --alter`): for all brokers, then for this one.
   They are kept over restarts. Only keys marked *dynamic* can be changed in this way. A stored value that does not fit
   any more is left out at the start, with an error in the log.

A topic's own configs win over all of these for that topic.

A value that does not fit keeps the broker from starting: one line on standard error names the key, the value and what
is allowed, and the exit code is 2. An unknown key of `--override` keeps it from starting, too; in a file or variable it
is ignored with a warning. Kafka's keys for machinery that is not here (ZooKeeper, tiered storage, metrics of the JVM,
pools of network threads) are accepted and listed once in the log; the last section names them.

## Durability

As with Kafka, an acknowledged record is in the operating system's page cache: it survives a crash of the broker, not
a crash of the machine. With `flush.messages=1` (per topic, or `log.flush.interval.messages=1` for all) a record is
acknowledged when it is on disk; one sync serves all appends that wait for it.

## Start

`tidelog serve` prints `tidelog ready on HOST:PORT` when it answers, and then, where it has an admin interface,
`console http://HOST:PORT` ([console.md](console.md)); logs go to standard error. SIGTERM and SIGINT stop it cleanly
with exit code 0. Exit code 1 means that it could not start: the port is taken, or the data directory
is in use or another cluster's. It also means that a running broker could not go on.
"""


PER_LISTENER = (
    "Each may be given for one listener alone: `listener.name.<its name in lower case>.<key>`. "
    "[security.md](security.md) tells how."
)


def page() -> str:
    """Build the whole page."""
    sections = [
        INTRODUCTION,
        table("The node and its directories", NODE_KEYS),
        table("Members of a cluster", MEMBER_KEYS),
        table("Listeners and connections", SOCKET_KEYS),
        table("Listeners that encrypt", TLS_KEYS, PER_LISTENER),
        table("Listeners that authenticate", SASL_KEYS, PER_LISTENER),
        table("Bearer tokens (OAUTHBEARER)", OAUTHBEARER_KEYS, PER_LISTENER),
        table("Kerberos (GSSAPI)", KERBEROS_KEYS, PER_LISTENER),
        table("Clients that are not authenticated yet", AUTHENTICATION_KEYS),
        table("Topics, logs and fetching", TOPIC_KEYS),
        table("Times of logs in several units", LOG_TIME_KEYS),
        topic_table(),
        table("Cleaner", CLEANER_CONFIG_DEF),
        table("Admin interface", ADMIN_KEYS),
        table("Authorizer", AUTHORIZER_KEYS),
        table("Delegation tokens", TOKEN_KEYS),
        table("Groups and offsets", GROUP_KEYS),
        table("Transactions and producers", TRANSACTION_KEYS),
        table("Configs of one group", GROUP_CONFIG_DEF, "Set with `kafka-configs.sh --entity-type groups`."),
        table(
            "Configs of a client metrics subscription",
            CLIENT_METRICS_CONFIG_DEF,
            "Set with `kafka-configs.sh --entity-type client-metrics`.",
        ),
        section_without_effect(),
    ]
    return "\n".join(sections)


def table(title: str, keys: Iterable[ConfigKey], remark: str = "") -> str:
    """Build a section with one row per key."""
    rows = [f"## {title}", ""]
    if remark:
        rows += [remark, ""]
    rows += ["| key | type | default | allowed | dynamic | |", "|---|---|---|---|---|---|"]
    for key in keys:
        dynamic = "yes" if key.dynamic else ""
        rows.append(
            f"| `{key.name}` | {key.type.name.lower()} | {default_of(key)} | {key.allowed} | {dynamic} | {key.doc} |"
        )
    return "\n".join([*rows, ""])


def topic_table() -> str:
    """Build the table of topic-level keys, with the server keys that give their defaults."""
    rows = [
        "## Topics' own configs",
        "",
        "Set when a topic is created, or later through the admin API. A topic without a value of its own has that of",
        "the server key. Server keys are dynamic, except `log.message.format.version`,",
        "`log.flush.scheduler.interval.ms` and those in minutes or hours.",
        "",
        "| key | server key | type | default | allowed | |",
        "|---|---|---|---|---|---|",
    ]
    for key in TOPIC_CONFIG_DEF:
        names = ", ".join(f"`{synonym.server_key}`" for synonym in SYNONYMS.get(key.name, ()))
        rows.append(
            f"| `{key.name}` | {names} | {key.type.name.lower()} | {default_of(key)} | {key.allowed} | {key.doc} |"
        )
    return "\n".join([*rows, ""])


def section_without_effect() -> str:
    """Build the list of keys that are accepted without effect."""
    rows = [f"- `{name}*`" if name.endswith(".") else f"- `{name}`" for name in sorted(NO_EFFECT)]
    return "\n".join(["## Kafka's keys without effect here", "", *rows, ""])


def default_of(key: ConfigKey) -> str:
    """Format a default as in a properties file."""
    if key.default is NO_DEFAULT:
        return "must be given"
    text = key.to_text(key.default)
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    sys.stdout.write(page())
