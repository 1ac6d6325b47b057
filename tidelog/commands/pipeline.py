"""``tidelog pipeline JOB``: export, audit, index, compact, replay and backfill over logs, on Spark or in this process.

The jobs are functions of ``tidelog.pipeline.jobs``. This module calls them and prints their results;
``pipeline_options`` has their options.

Exit codes: 0 success; 1 the job failed, an audit found a fault, or a table is not complete; 2 wrong options, paths
or configuration, or a Python package is missing.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from tidelog.commands.frame.commands import Command, Group
from tidelog.commands.frame.exit_codes import EXIT_FAILED, EXIT_USAGE
from tidelog.commands.frame.output import print_json
from tidelog.commands.pipeline_options import (
    CODECS,
    audit_options,
    backfill_options,
    compact_options,
    export_options,
    index_options,
    replay_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from tidelog.broker.metadata.metadata_image import MetadataImage
    from tidelog.client.security import Security
    from tidelog.pipeline.jobs.exporting.request import ExportRequest, ExportResult
    from tidelog.pipeline.jobs.iceberg import IcebergTarget
    from tidelog.pipeline.jobs.offline_logs import Configuration
    from tidelog.pipeline.jobs.progress import Progress
    from tidelog.pipeline.jobs.source import LogSource
    from tidelog.pipeline.jobs.writing import Target
    from tidelog.pipeline.values.registry import Registry

IN_PROCESS = "none"
DEFAULT_MASTER = "local[*]"
FLAGS = {
    "path": "--path",
    "subscribe": "--topic",
    "subscribePattern": "--pattern",
    "assign": "--assign",
    "startingOffsets": "--from",
    "startingTimestamp": "--from",
    "endingOffsets": "--until",
    "endingTimestamp": "--until",
    "kafka.bootstrap.servers": "--bootstrap",
}
"""Options of ``format("tidelog")`` in errors -> their command-line flags."""
_OPTION = "|".join(map(re.escape, sorted(FLAGS, key=len, reverse=True)))
_NAMED = re.compile(rf"^(?P<first>{_OPTION})(?:=|(?=[: ]))|(?<=\()(?P<inside>{_OPTION})(?=\))")


@click.group(cls=Group)
def command() -> None:
    """Export, audit, index, compact, replay and backfill logs."""


def add_job(name: str, help_text: str, parameters: list[click.Parameter]) -> None:
    """Add a job of ``JOBS`` to the command, with the options that every job has."""
    common: list[click.Parameter] = [
        click.Option(
            ["--master"],
            default=DEFAULT_MASTER,
            metavar="URL",
            show_default=True,
            help=f"Spark master; {IN_PROCESS} runs in this process without Spark",
        ),
        click.Option(["--quiet"], is_flag=True, help="no progress, only the result"),
        click.Option(["--json", "as_json"], is_flag=True, help="JSON in place of text"),
    ]

    def start(**values: object) -> int:
        return run(SimpleNamespace(job=name, **values))

    command.add_command(Command(name, params=[*parameters, *common], callback=start, help=help_text))


def run(arguments: SimpleNamespace) -> int:
    """Run a job, and print an error in one line. Returns the exit code."""
    from tidelog.pipeline.errors import OffsetRangeError, OptionError, PipelineError, SelectionError
    from tidelog.pipeline.job_errors import BadRequestError, MissingPackageError
    from tidelog.protocol.config_def import ConfigError
    from tidelog.protocol.errors import KafkaError

    bad_input = (OptionError, SelectionError, OffsetRangeError, BadRequestError, MissingPackageError, ConfigError)
    try:
        return JOBS[arguments.job](arguments)
    except bad_input as error:
        _complain(arguments, error)
        return EXIT_USAGE
    except (PipelineError, KafkaError, OSError) as error:
        _complain(arguments, error)
        return EXIT_FAILED
    except ModuleNotFoundError as error:
        _complain(arguments, _missing_package(error))
        return EXIT_USAGE


def _missing_package(error: ModuleNotFoundError) -> Exception:
    """Build the error that names the extra with the missing package. Raises ``error`` itself if no extra has it."""
    from tidelog.pipeline.job_errors import PACKAGES, missing_package_error

    package = (error.name or "").partition(".")[0]
    if package not in PACKAGES:
        raise error
    return missing_package_error(package, PACKAGES[package])


def _complain(arguments: SimpleNamespace, error: Exception) -> None:
    print(f"tidelog pipeline {arguments.job}: {name_flags(str(error))}", file=sys.stderr)


def name_flags(message: str) -> str:
    """Replace options in a message by the flags of the command line: at its beginning, where an error names its option,
    and in parentheses.
    """

    def flag(found: re.Match[str]) -> str:
        if found["inside"]:
            return FLAGS[found["inside"]]
        return FLAGS[found["first"]] + (" " if found[0].endswith("=") else "")

    return _NAMED.sub(flag, message)


def _source(arguments: SimpleNamespace) -> LogSource:
    """Build the source of the logs that a job reads. Raises OptionError, BadRequestError."""
    from tidelog.client.connection import PLAIN
    from tidelog.pipeline.job_errors import BadRequestError
    from tidelog.pipeline.jobs.source import LogSource, choose
    from tidelog.pipeline.jobs.writing import check_addresses

    has_broker = getattr(arguments, "bootstrap", None) is not None
    if has_broker:
        check_addresses(arguments.bootstrap)
    paths = tuple(path.strip() for path in arguments.path.split(","))
    if not all(paths):  # an empty path would be the working directory
        raise BadRequestError(f"--path {arguments.path!r}: expected directories, separated by commas")
    return LogSource(
        paths,
        choose(arguments.topic, arguments.pattern, arguments.assign),
        getattr(arguments, "bootstrap", None),
        getattr(arguments, "isolation", "read_committed") == "read_committed",
        security=_security(arguments) if has_broker else PLAIN,
    )


def _security(arguments: SimpleNamespace) -> Security:
    """Load the security settings of the profile, as for every command that connects to a broker.

    Raises BadRequestError.
    """
    from tidelog.client.connection import DEFAULT_TIMEOUT_S, ClientError
    from tidelog.client.settings import load_settings
    from tidelog.pipeline.job_errors import BadRequestError

    try:
        return load_settings(arguments.bootstrap, arguments.profile, DEFAULT_TIMEOUT_S, os.environ).security
    except ClientError as error:
        raise BadRequestError(str(error)) from error


def _spark(arguments: SimpleNamespace) -> SparkSession | None:
    from tidelog.pipeline.jobs.runner import require_arrow, start_spark

    require_arrow()
    return None if arguments.master == IN_PROCESS else start_spark(arguments.job, arguments.master)


def _progress(arguments: SimpleNamespace) -> Progress:
    from tidelog.pipeline.jobs.progress import Progress

    return Progress(arguments.job, quiet=arguments.quiet)


def _export(arguments: SimpleNamespace) -> int:
    from tidelog.pipeline.jobs.replay import moment
    from tidelog.pipeline.jobs.reports.export_report import as_json, completeness, report

    before = arguments.complete_before
    before_ms = None if before is None else moment(before, "--complete-before")
    request = _export_request(arguments)
    _check_table_options(arguments)
    if arguments.follow:
        return _follow(arguments, request)
    result = _run_export(arguments, request, _spark(arguments))
    is_incomplete = before_ms is not None and bool(result.incomplete(before_ms))
    if arguments.as_json:
        print_json(as_json(result, arguments.table, before_ms))
    else:
        print("\n".join(report(result, arguments.table)))
        if before_ms is not None:
            print(completeness(result, before_ms))
    return EXIT_FAILED if is_incomplete else 0


def _export_request(arguments: SimpleNamespace) -> ExportRequest:
    """Build the request of an export. Raises OptionError, BadRequestError."""
    from tidelog.pipeline.job_errors import BadRequestError
    from tidelog.pipeline.jobs.exporting.request import ExportRequest
    from tidelog.pipeline.options.options import size_in_bytes

    if not arguments.table:
        raise BadRequestError("TABLE is empty: expected a directory, or with --catalog NAMESPACE.TABLE")
    source = _source(arguments)
    if source.bootstrap is None:
        source = dataclasses.replace(source, replicated=_finder_of_replicated(arguments))
    return ExportRequest(
        source=source,
        table=arguments.table,
        file_bytes=size_in_bytes({"--file-bytes": arguments.file_bytes}, "--file-bytes") or 1,
        commit_files=arguments.commit_files,
        commit_minutes=arguments.commit_minutes,
        headers=not arguments.no_headers,
        restart_recreated=arguments.restart_recreated,
        fail_on_data_loss=not arguments.accept_data_loss,
        keep_damaged=not arguments.fail_on_damage,
        mode=arguments.mode,
        values=arguments.values or "",
        registry=_registry(arguments),
    )


def _registry(arguments: SimpleNamespace) -> Registry | None:
    """Build the registry of ``--registry``, None if values are not decoded by one. Raises BadRequestError."""
    from tidelog.pipeline.job_errors import BadRequestError
    from tidelog.pipeline.values.registry import Registry

    if (arguments.registry is None) != (arguments.values != "registry"):
        raise BadRequestError("--registry URL and --values registry: expected both or none")
    if arguments.registry is None:
        return None
    properties = (_key_and_value(text, "--registry-property") for text in arguments.registry_property)
    return Registry((("url", arguments.registry), *properties))


def _check_table_options(arguments: SimpleNamespace) -> None:
    """Raise BadRequestError for options that exclude or need each other."""
    from tidelog.pipeline.job_errors import BadRequestError

    has_catalog = arguments.catalog is not None
    if arguments.warehouse is not None and not has_catalog:
        raise BadRequestError(f"--warehouse {arguments.warehouse}: expected --catalog URI with it")
    if arguments.partition_by is not None and not has_catalog:
        raise BadRequestError(f"--partition-by {arguments.partition_by}: expected --catalog with it")
    if arguments.format != "parquet" and has_catalog:
        raise BadRequestError(f"--format {arguments.format}: expected it without --catalog")
    if arguments.mode == "upsert" and arguments.format == "parquet" and not has_catalog:
        raise BadRequestError("--mode upsert: expected --catalog or --format delta with it")
    if arguments.complete_before is not None and arguments.follow:
        raise BadRequestError("--complete-before: expected it without --follow")
    if arguments.metrics is not None and not arguments.follow:
        raise BadRequestError(f"--metrics {arguments.metrics}: expected --follow with it")


def _print(arguments: SimpleNamespace, lines: Callable[[], Sequence[str]], document: Callable[[], Any]) -> None:
    """Print a result as text or, with ``--json``, as a JSON document."""
    if arguments.as_json:
        print_json(document())
    else:
        print("\n".join(lines()))


def _fields(results: Sequence[Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(result) for result in results]


def _follow(arguments: SimpleNamespace, request: ExportRequest) -> int:
    """Export once per interval until a signal; the export that runs at the signal is completed."""
    from tidelog.pipeline.job_errors import BadRequestError
    from tidelog.pipeline.jobs.exporting.follow import Follower
    from tidelog.pipeline.jobs.runner import require_running

    if arguments.as_json:
        raise BadRequestError("--json: expected it without --follow, whose results programs read from --metrics FILE")
    spark = _spark(arguments)

    def run() -> ExportResult:
        require_running(spark)
        return _run_export(arguments, request, spark)

    follower = Follower(
        run,
        lambda line: print(f"{arguments.table} {line}", flush=True),
        arguments.interval,
        arguments.metrics,
    )
    before = {number: signal.signal(number, lambda *_: follower.stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        follower.follow()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _run_export(arguments: SimpleNamespace, request: ExportRequest, spark: SparkSession | None) -> ExportResult:
    """Run the export for the kind of table in the options. Raises PipelineError."""
    target = _iceberg_target(arguments)
    progress = _progress(arguments)
    if target is not None:
        from tidelog.pipeline.jobs.iceberg import export_to_iceberg

        return export_to_iceberg(spark, request, target, progress)
    if arguments.format == "delta":
        from tidelog.pipeline.jobs.exporting.delta import export_to_delta

        return export_to_delta(spark, request, progress)
    from tidelog.pipeline.jobs.export import export

    return export(spark, request, progress)


def _audit(arguments: SimpleNamespace) -> int:
    from tidelog.pipeline.jobs.audit import AuditRequest, audit
    from tidelog.pipeline.jobs.reports.audit_report import as_json, make_report_directory, summary, write_report

    request = AuditRequest(_source(arguments), arguments.table, not arguments.quick, _audited_iceberg(arguments))
    if arguments.report is not None:
        make_report_directory(arguments.report)  # before the audit, which may take hours
    found = audit(_spark(arguments), request, _progress(arguments))
    if arguments.report is not None:
        write_report(found, arguments.report)
    _print(arguments, lambda: summary(found), lambda: as_json(found))
    return EXIT_FAILED if found.is_wrong else 0


def _audited_iceberg(arguments: SimpleNamespace) -> IcebergTarget | None:
    """Build the target of the Iceberg table that an audit compares with, None without one. Raises BadRequestError."""
    from tidelog.pipeline.job_errors import BadRequestError

    if arguments.catalog is not None and arguments.table is None:
        raise BadRequestError(f"--catalog {arguments.catalog}: expected --table NAMESPACE.TABLE with it")
    return _iceberg_target(arguments)


def _iceberg_target(arguments: SimpleNamespace) -> IcebergTarget | None:
    """Build the target of the Iceberg table in the options, None without one. Raises BadRequestError."""
    from tidelog.pipeline.job_errors import BadRequestError
    from tidelog.pipeline.jobs.exporting.partitioning import parse_fields
    from tidelog.pipeline.jobs.iceberg import CATALOG_NAME, IcebergTarget

    properties = tuple(_key_and_value(text, "--catalog-property") for text in arguments.catalog_property)
    if arguments.catalog is None:
        if properties or arguments.catalog_name:
            raise BadRequestError("--catalog-name and --catalog-property: expected --catalog with them")
        return None
    name = arguments.catalog_name or CATALOG_NAME
    warehouse, fields = getattr(arguments, "warehouse", None), getattr(arguments, "partition_by", None)
    partition_by = () if fields is None else parse_fields(fields)
    return IcebergTarget(arguments.catalog, arguments.table, warehouse, properties, name, partition_by)


def _key_and_value(text: str, flag: str) -> tuple[str, str]:
    """Split ``KEY=VALUE``. Raises BadRequestError."""
    from tidelog.pipeline.job_errors import BadRequestError

    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise BadRequestError(f"{flag}: expected KEY=VALUE, found a text without key or equals sign")
    return key.strip(), value.strip()


def _configuration(arguments: SimpleNamespace) -> Configuration:
    """Read topic configurations from the broker's metadata; --config overrides them. Raises BadRequestError, and as
    ``_read_metadata``."""
    from tidelog.pipeline.jobs.offline_logs import Configuration

    overrides = dict(_key_and_value(text, "--config") for text in arguments.config)
    known: dict[str, Mapping[str, str]] = {}
    for path in arguments.path.split(","):
        known.update(_stored_configs(path.strip()))
    check_topic_configs(overrides)
    return Configuration(known, overrides)


def check_topic_configs(texts: Mapping[str, str]) -> None:
    """Raise BadRequestError for a key that is not a topic configuration."""
    from tidelog.log.config import TOPIC_CONFIG_DEF
    from tidelog.pipeline.job_errors import BadRequestError

    known = set(TOPIC_CONFIG_DEF.keys)
    for key in texts:
        if key not in known:
            raise BadRequestError(f"--config {key}: not a topic configuration; see docs/configuration.md")


def _stored_configs(path: str) -> dict[str, Mapping[str, str]]:
    """Read each topic's own configuration from a data directory's metadata, if any. Raises as ``_read_metadata``."""
    from tidelog.broker.metadata.metadata_image import TOPIC_RESOURCE

    image = _read_metadata(path)
    configs = {} if image is None else image.configs
    return {name: texts for (kind, name), texts in configs.items() if kind == TOPIC_RESOURCE}


def _read_metadata(path: str) -> MetadataImage | None:
    """Read the metadata log of a data directory; None if it has none. Raises JobError."""
    from tidelog.broker.metadata.log_reader import METADATA_DIRECTORY, read_metadata_image
    from tidelog.log.system.file_system import OsFileSystem
    from tidelog.pipeline.job_errors import JobError
    from tidelog.protocol.errors import KafkaStorageError

    directory = os.path.join(path, METADATA_DIRECTORY)
    if not os.path.exists(directory):
        return None
    try:
        return read_metadata_image(OsFileSystem(), directory)
    except KafkaStorageError as error:
        raise JobError(str(error)) from error


def _finder_of_replicated(arguments: SimpleNamespace) -> Callable[[], frozenset[tuple[str, int]]]:
    """Return a function that reads from the data directories' metadata which partitions have several replicas.

    If a directory's metadata cannot be read, what was read from it before counts. If nothing was, all its records count
    as committed, and a line says so once.
    """
    from tidelog.pipeline.job_errors import JobError

    told, known = set[str](), dict[str, set[tuple[str, int]]]()

    def find() -> frozenset[tuple[str, int]]:
        for path in map(str.strip, arguments.path.split(",")):
            try:
                image = _read_metadata(path)
            except JobError as error:
                if path not in known and path not in told:
                    told.add(path)
                    _complain(arguments, JobError(f"{error}; all records in {path} count as committed"))
                continue
            topics = image.topics.values() if image is not None else ()
            known[path] = {
                (topic.name, number)
                for topic in topics
                for number, one in enumerate(topic.partitions)
                if len(one.replicas) > 1
            }
        return frozenset().union(*known.values())

    return find


def _index(arguments: SimpleNamespace) -> int:
    from tidelog.pipeline.jobs.index import IndexRequest, index, report

    request = IndexRequest(_source(arguments), _configuration(arguments), rebuild=arguments.rebuild)
    results = index(_spark(arguments), request, _progress(arguments))
    _print(arguments, lambda: report(results), lambda: _fields(results))
    return 0


def _compact(arguments: SimpleNamespace) -> int:
    from tidelog.pipeline.jobs.compact import CompactRequest, compact, report

    request = CompactRequest(_source(arguments), _configuration(arguments), dry_run=arguments.dry_run)
    results = compact(_spark(arguments), request, _progress(arguments))
    _print(arguments, lambda: report(results, dry_run=arguments.dry_run), lambda: _fields(results))
    return 0


def _target(arguments: SimpleNamespace) -> Target:
    """Build the topic that a job writes to. Raises BadRequestError."""
    from tidelog.pipeline.job_errors import BadRequestError
    from tidelog.pipeline.jobs.writing import Target

    if arguments.rate is not None and not arguments.rate > 0:
        raise BadRequestError(f"--rate {arguments.rate}: expected more than 0 records per second")
    codec = CODECS.index(arguments.compression)
    return Target(arguments.bootstrap, arguments.to, codec, arguments.rate, security=_security(arguments))


def _replay(arguments: SimpleNamespace) -> int:
    from tidelog.pipeline.jobs.replay import ReplayRequest, replay, replay_source, report
    from tidelog.pipeline.jobs.source import ALL_PATTERN

    names = {"subscribe": arguments.topic, "subscribePattern": arguments.pattern, "assign": arguments.assign}
    choice = {name: text for name, text in names.items() if text is not None}
    source = replay_source(arguments.path, choice or {"subscribePattern": ALL_PATTERN}, arguments.begin, arguments.end)
    source = dataclasses.replace(source, replicated=_finder_of_replicated(arguments)())
    request = ReplayRequest(source, _target(arguments), arguments.name or arguments.to, by_key=arguments.by_key)
    results = replay(_spark(arguments), request, _progress(arguments))
    _print(arguments, lambda: report(results, request), lambda: _fields(results))
    return 0


def _backfill(arguments: SimpleNamespace) -> int:
    from tidelog.pipeline.jobs.backfill import BackfillRequest, backfill, report

    request = BackfillRequest(tuple(arguments.files), _target(arguments), arguments.name or arguments.to)
    results = backfill(_spark(arguments), request, _progress(arguments))
    _print(arguments, lambda: report(results, request), lambda: _fields(results))
    return 0


JOBS: dict[str, Callable[[SimpleNamespace], int]] = {
    "export": _export,
    "audit": _audit,
    "index": _index,
    "compact": _compact,
    "replay": _replay,
    "backfill": _backfill,
}
add_job(
    "export",
    "Export topics to a table of Parquet files, Iceberg or Delta, incrementally, each record exactly once.\n\n"
    "TABLE is a directory, made if missing, or with --format delta an address in an object store; with --catalog\n"
    "an Iceberg name.",
    export_options(),
)
add_job(
    "audit", "Check logs on disk: checksums, gaps, duplicates, indices; and against an exported table.", audit_options()
)
add_job(
    "index",
    "Build a stopped broker's indices of offsets, times, keys (index.keys) and tags (index.tag.header), as it would.",
    index_options(),
)
add_job("compact", "Compact a stopped broker's logs, as its cleaner would.", compact_options())
add_job("replay", "Write a range of a log into a topic; run again, it writes no record twice.", replay_options())
add_job(
    "backfill",
    "Write the rows of Parquet files into a topic; run again, it writes no row twice.\n\n"
    "PATH are Parquet files, or directories of them.",
    backfill_options(),
)
