"""Options of the jobs of ``tidelog pipeline``, in groups that jobs share."""

from __future__ import annotations

import click

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def source_options(*, is_written: bool = False) -> list[click.Parameter]:
    """Build the options that choose logs; logs that a job changes must be in local directories (``is_written``)."""
    copies = "" if is_written else ", or their copies in an object store: s3://BUCKET/PREFIX"
    return [
        click.Option(
            ["--path"], required=True, metavar="DIR[,DIR]", help=f"the broker's data directories (log.dirs){copies}"
        ),
        click.Option(["--topic"], metavar="NAME[,NAME]", help="topics; default: all but the broker's own"),
        click.Option(["--pattern"], metavar="REGEX", help="topics whose whole name matches"),
        click.Option(["--assign"], metavar="JSON", help='partitions, such as {"orders":[0,1]}'),
    ]


def profile_option() -> click.Option:
    """Build the option for a file of client properties."""
    return click.Option(
        ["--profile", "--command-config", "profile"],
        metavar="FILE",
        help="client properties for --bootstrap; default: $TIDELOG_PROFILE, or tidelog/profile.properties in ~/.config",
    )


def committed_source_options() -> list[click.Parameter]:
    """Build the options that choose logs and which of their records are read."""
    return [
        *source_options(),
        click.Option(["--bootstrap"], metavar="HOST:PORT", help="ask this broker where the logs end, not the files"),
        profile_option(),
        click.Option(
            ["--isolation"],
            type=click.Choice(["read_committed", "read_uncommitted"]),
            default="read_committed",
            show_default=True,
            help="whether records of open and aborted transactions are left out",
        ),
    ]


def export_options() -> list[click.Parameter]:
    """Build the options of ``export``."""
    return [
        *committed_source_options(),
        *table_options(),
        *value_options(),
        *new_iceberg_table_options(),
        *commit_options(),
        *follow_options(),
        *row_options(),
    ]


def table_options() -> list[click.Parameter]:
    """Build the options that name an export's table and its kind."""
    return [
        click.Argument(["table"], metavar="TABLE"),
        click.Option(
            ["--format"],
            type=click.Choice(["parquet", "delta"]),
            default="parquet",
            show_default=True,
            help="the format of a table without --catalog",
        ),
        click.Option(
            ["--mode"],
            type=click.Choice(["append", "upsert"]),
            default="append",
            show_default=True,
            help="a row for each record, or (Iceberg, Delta) for the latest of each key, deleted by a null value",
        ),
    ]


def value_options() -> list[click.Parameter]:
    """Build the options that decode values into columns."""
    return [
        click.Option(
            ["--values"],
            type=click.Choice(["json", "registry"]),
            help="columns for the fields of values: plain JSON, or as the schemas of --registry say",
        ),
        click.Option(["--registry"], metavar="URL", help="schema registry, for --values registry"),
        click.Option(
            ["--registry-property"],
            multiple=True,
            metavar="KEY=VALUE",
            help="a property of the registry's client, named as in confluent-kafka; may be repeated",
        ),
    ]


def new_iceberg_table_options() -> list[click.Parameter]:
    """Build the options that name an Iceberg catalog, and those for a new table in it."""
    return [
        *catalog_options("Iceberg: a catalog, such as sqlite:////data/catalog.db, or its name in .pyiceberg.yaml"),
        click.Option(["--warehouse"], metavar="DIR", help="Iceberg: where a new table's files go"),
        click.Option(
            ["--partition-by"],
            metavar="FIELDS",
            help="Iceberg: partitions of a new table: topic, partition, hour(timestamp) or day(timestamp)",
        ),
    ]


def commit_options() -> list[click.Parameter]:
    """Build the options for the size of files and commits, and for the check of completeness."""
    return [
        click.Option(
            ["--complete-before"],
            metavar="TIME",
            help="say whether the table has every record before this time (ms or ISO 8601); exit code 1 when not",
        ),
        click.Option(["--file-bytes"], metavar="SIZE", default="256m", show_default=True, help="log bytes per file"),
        click.Option(
            ["--commit-files"],
            metavar="N",
            type=click.IntRange(1),
            default=64,
            show_default=True,
            help="commit after every N files",
        ),
        click.Option(
            ["--commit-minutes"],
            metavar="N",
            type=click.FloatRange(0),
            default=10,
            show_default=True,
            help="or after N minutes",
        ),
    ]


def follow_options() -> list[click.Parameter]:
    """Build the options of an export that runs again at an interval."""
    return [
        click.Option(["--follow"], is_flag=True, help="go on until SIGTERM or SIGINT, with a run every --interval"),
        click.Option(
            ["--interval"],
            metavar="SECONDS",
            type=click.FloatRange(0),
            default=60,
            show_default=True,
            help="with --follow: from the start of a run to the next",
        ),
        click.Option(
            ["--metrics"],
            metavar="FILE",
            help="with --follow: write commits, failures, rows, bytes and lag there after each run, for Prometheus",
        ),
    ]


def row_options() -> list[click.Parameter]:
    """Build the options for rows and columns that an export leaves out, and for faults that do not stop it."""
    return [
        click.Option(["--no-headers"], is_flag=True, help="leave the headers column out"),
        click.Option(
            ["--restart-recreated"], is_flag=True, help="export a re-created topic from its start; its old rows stay"
        ),
        click.Option(
            ["--accept-data-loss"], is_flag=True, help="go on when retention deleted records before they were exported"
        ),
        click.Option(
            ["--fail-on-damage"], is_flag=True, help="stop at a damaged batch; default: put it among the dead letters"
        ),
    ]


def catalog_options(what: str) -> list[click.Parameter]:
    """Build the options that name an Iceberg catalog."""
    return [
        click.Option(["--catalog"], metavar="URI|NAME", help=what),
        click.Option(
            ["--catalog-name"],
            metavar="NAME",
            help="with a URI: the name under which its database keeps the tables; default: tidelog",
        ),
        click.Option(
            ["--catalog-property"],
            multiple=True,
            metavar="KEY=VALUE",
            help="a property of the catalog, named as in pyiceberg, such as type=rest or token=...; may be repeated",
        ),
    ]


def audit_options() -> list[click.Parameter]:
    """Build the options of ``audit``."""
    return [
        *source_options(),
        click.Option(
            ["--table"],
            metavar="TABLE",
            help="compare with this exported table, offset by offset: a directory, or an Iceberg name with --catalog",
        ),
        *catalog_options("the Iceberg catalog of TABLE: its URI, or its name in .pyiceberg.yaml"),
        click.Option(["--report"], metavar="DIR", help="write report.md, report.html, report.json and pictures there"),
        click.Option(
            ["--quick"],
            is_flag=True,
            help="check batches, not their records: no counts and checksums for each ten minutes",
        ),
    ]


def config_option() -> click.Parameter:
    """Build the option for topic configurations."""
    return click.Option(
        ["--config"],
        multiple=True,
        metavar="KEY=VALUE",
        help="a topic configuration, which overrides the broker's metadata; may be repeated",
    )


def target_options() -> list[click.Parameter]:
    """Build the options for the topic to write to."""
    return [
        click.Option(["--to"], required=True, metavar="TOPIC", help="the topic to write to"),
        click.Option(["--bootstrap"], required=True, metavar="HOST:PORT", help="the broker to write to"),
        profile_option(),
        click.Option(
            ["--name"], metavar="NAME", help="name of the run: a stopped run goes on under its name; default: TOPIC"
        ),
        click.Option(["--rate"], type=float, metavar="N", help="records per second, all tasks together"),
        click.Option(
            ["--compression"], type=click.Choice(CODECS), default="none", show_default=True, help="codec of the batches"
        ),
    ]


def index_options() -> list[click.Parameter]:
    """Build the options of ``index``."""
    rebuild = click.Option(["--rebuild"], is_flag=True, help="build all indices again, even those in order")
    return [*source_options(is_written=True), config_option(), rebuild]


def compact_options() -> list[click.Parameter]:
    """Build the options of ``compact``."""
    dry_run = click.Option(["--dry-run"], is_flag=True, help="print what would be removed; change nothing")
    return [*source_options(is_written=True), config_option(), dry_run]


def replay_options() -> list[click.Parameter]:
    """Build the options of ``replay``."""
    return [
        *source_options(),
        *target_options(),
        click.Option(["--from", "begin"], metavar="WHERE", help="earliest, a time in ms or ISO 8601, or JSON"),
        click.Option(["--until", "end"], metavar="WHERE", help="latest, a time, or JSON {topic:{partition:N}}"),
        click.Option(["--by-key"], is_flag=True, help="choose partitions by key; default: each record's own partition"),
    ]


def backfill_options() -> list[click.Parameter]:
    """Build the options of ``backfill``."""
    return [click.Argument(["files"], nargs=-1, required=True, metavar="PATH..."), *target_options()]
