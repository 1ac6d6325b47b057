"""``tidelog pipeline JOB``: export, audit, index, compact, replay and backfill over logs, on Spark or in this process.

The jobs themselves are functions of ``tidelog.pipeline.jobs``; here are their options, their progress and what they
print.

Exit codes: 0 done; 1 the job failed, an audit found something, or a table is not complete; 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from tidelog.pipeline.jobs.iceberg import IcebergTarget
    from tidelog.pipeline.jobs.offline_logs import Configuration
    from tidelog.pipeline.jobs.progress import Progress
    from tidelog.pipeline.jobs.source import LogSource
    from tidelog.pipeline.jobs.writing import Target

HELP = "jobs over logs on Spark: export, audit, index, compact, replay, backfill"
EXIT_FAILED = 1
EXIT_USAGE = 2
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
"""Options of ``format("tidelog")`` that errors of reading name, with their command-line flags."""
_OPTION = "|".join(map(re.escape, sorted(FLAGS, key=len, reverse=True)))
_NAMED = re.compile(rf"^(?P<first>{_OPTION})(?:=|(?=[: ]))|(?<=\()(?P<inside>{_OPTION})(?=\))")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

EXPORT_HELP = "export topics to a table of Parquet files or of Iceberg, incrementally, each record exactly once"
AUDIT_HELP = "check logs on disk: checksums, gaps, duplicates, indices; and against an exported table"
INDEX_HELP = "build key, tag, offset and time indices of a stopped broker's logs, as the broker would"
COMPACT_HELP = "compact a stopped broker's logs, as its cleaner would"
REPLAY_HELP = "write a range of a log into a topic again, once, however often it is run"
BACKFILL_HELP = "write the rows of Parquet files into a topic, once, however often it is run"


class _JobParser(argparse.ArgumentParser):
    """The parser of a job's options. It refuses unknown ones itself, with its own usage: argparse would leave that to
    the parser above, whose usage lists none of them."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            near = difflib.get_close_matches(unknown[0].partition("=")[0], known, 1)
            hint = f"; the nearest is {near[0]}" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    jobs = parser.add_subparsers(dest="job", metavar="JOB", required=True, parser_class=_JobParser)
    for name, help_text, add in (
        ("export", EXPORT_HELP, _add_export),
        ("audit", AUDIT_HELP, _add_audit),
        ("index", INDEX_HELP, _add_index),
        ("compact", COMPACT_HELP, _add_compact),
        ("replay", REPLAY_HELP, _add_replay),
        ("backfill", BACKFILL_HELP, _add_backfill),
    ):
        job = jobs.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.",
                              allow_abbrev=False)  # fmt: skip
        add(job)
        job.add_argument(
            "--master",
            default=DEFAULT_MASTER,
            metavar="URL",
            help=f"Spark master; {IN_PROCESS} runs in this process without Spark; default: %(default)s",
        )
        job.add_argument("--quiet", action="store_true", help="no progress, only the result")


def _add_source(parser: argparse.ArgumentParser, *, is_written: bool = False) -> None:
    """Add the options that choose logs; logs that a job writes lie in directories."""
    copies = "" if is_written else ", or their copies in an object store: s3://BUCKET/PREFIX"
    parser.add_argument(
        "--path", required=True, metavar="DIR[,DIR]", help=f"the broker's data directories (log.dirs){copies}"
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--topic", metavar="NAME[,NAME]", help="topics; default: all but the broker's own")
    choice.add_argument("--pattern", metavar="REGEX", help="topics whose whole name matches")
    choice.add_argument("--assign", metavar="JSON", help='partitions, such as {"orders":[0,1]}')


def _add_committed_source(parser: argparse.ArgumentParser) -> None:
    _add_source(parser)
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="ask this broker where the logs end, not the files")
    parser.add_argument(
        "--isolation",
        choices=("read_committed", "read_uncommitted"),
        default="read_committed",
        help="whether records of open and aborted transactions are left out; default: %(default)s",
    )


def _add_export(parser: argparse.ArgumentParser) -> None:
    _add_committed_source(parser)
    parser.add_argument("table", metavar="TABLE", help="a directory, made if missing; with --catalog an Iceberg name")
    parser.add_argument("--catalog", metavar="URI", help="Iceberg: a catalog, such as sqlite:////data/catalog.db")
    parser.add_argument("--warehouse", metavar="DIR", help="Iceberg: where a new table's files go")
    parser.add_argument(
        "--complete-before",
        metavar="TIME",
        help="say whether the table has every record before this time (ms or ISO 8601); exit code 1 when not",
    )
    parser.add_argument("--file-bytes", metavar="SIZE", default="256m", help="log bytes per file; default: %(default)s")
    parser.add_argument(
        "--commit-files", metavar="N", type=int, default=64, help="commit after every N files; default: %(default)s"
    )
    parser.add_argument(
        "--commit-minutes", metavar="N", type=float, default=10, help="or after N minutes; default: %(default)s"
    )
    parser.add_argument("--no-headers", action="store_true", help="leave the headers column out")
    parser.add_argument(
        "--restart-recreated",
        action="store_true",
        help="export a re-created topic from its start; its old rows stay",
    )
    parser.add_argument(
        "--accept-data-loss", action="store_true", help="go on when retention took records before they were exported"
    )
    parser.add_argument(
        "--fail-on-damage", action="store_true", help="stop at a damaged batch; default: put it into dead-letter"
    )


def _add_audit(parser: argparse.ArgumentParser) -> None:
    _add_source(parser)
    parser.add_argument(
        "--table",
        metavar="TABLE",
        help="compare with this exported table, offset by offset: a directory, or an Iceberg name with --catalog",
    )
    parser.add_argument("--catalog", metavar="URI", help="TABLE is Iceberg's, of this catalog")
    parser.add_argument("--report", metavar="DIR", help="write report.md, report.html, report.json and pictures there")
    parser.add_argument("--quick", action="store_true", help="batches only: no records per ten minutes, no checksums")


def _add_index(parser: argparse.ArgumentParser) -> None:
    _add_source(parser, is_written=True)
    _add_configs(parser)
    parser.add_argument("--rebuild", action="store_true", help="build all indices again, even those in order")


def _add_compact(parser: argparse.ArgumentParser) -> None:
    _add_source(parser, is_written=True)
    _add_configs(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed; change nothing")


def _add_configs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a topic configuration, over what the broker's metadata says; may be repeated",
    )


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True, metavar="TOPIC", help="the topic to write to")
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT", help="the broker to write to")
    parser.add_argument(
        "--name", metavar="NAME", help="name of the run: a stopped run goes on under its name; default: TOPIC"
    )
    parser.add_argument("--rate", type=float, metavar="N", help="records per second, all tasks together")
    parser.add_argument(
        "--compression", choices=CODECS, default="none", help="codec of the batches; default: %(default)s"
    )


def _add_replay(parser: argparse.ArgumentParser) -> None:
    _add_source(parser)
    _add_target(parser)
    parser.add_argument("--from", dest="begin", metavar="WHERE", help="earliest, a time in ms or ISO 8601, or JSON")
    parser.add_argument("--until", dest="end", metavar="WHERE", help="latest, a time, or JSON {topic:{partition:N}}")
    parser.add_argument("--by-key", action="store_true", help="partitions by key; default: those the records come from")


def _add_backfill(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="PATH", help="Parquet files, or directories of them")
    _add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    from tidelog.pipeline.errors import OffsetRangeError, OptionError, PipelineError, SelectionError
    from tidelog.pipeline.job_errors import BadRequestError, MissingPackageError
    from tidelog.protocol.config_def import ConfigError
    from tidelog.protocol.errors import KafkaError

    bad_input = (OptionError, SelectionError, OffsetRangeError, BadRequestError, MissingPackageError, ConfigError)
    try:
        code: int = JOBS[arguments.job](arguments)
    except bad_input as error:
        _complain(arguments, error)
        return EXIT_USAGE
    except (PipelineError, KafkaError, OSError) as error:
        _complain(arguments, error)
        return EXIT_FAILED
    except ModuleNotFoundError as error:
        _complain(arguments, _missing_package(error))
        return EXIT_USAGE
    return code


def _missing_package(error: ModuleNotFoundError) -> Exception:
    """Build the error that names the extra with the missing package. Raises ``error`` itself when none has it."""
    from tidelog.pipeline.job_errors import PACKAGES, missing

    package = (error.name or "").partition(".")[0]
    if package not in PACKAGES:
        raise error
    return missing(package, PACKAGES[package])


def _complain(arguments: argparse.Namespace, error: Exception) -> None:
    print(f"tidelog pipeline {arguments.job}: {in_flags(str(error))}", file=sys.stderr)


def in_flags(message: str) -> str:
    """The message with the flags that were typed instead of the options they stand for: at its beginning, where an
    error names the option it is about, and in parentheses."""

    def flag(found: re.Match[str]) -> str:
        if found["inside"]:
            return FLAGS[found["inside"]]
        return FLAGS[found["first"]] + (" " if found[0].endswith("=") else "")

    return _NAMED.sub(flag, message)


def _source(arguments: argparse.Namespace) -> LogSource:
    """Raises OptionError, BadRequestError."""
    from tidelog.pipeline.jobs.source import LogSource, choose
    from tidelog.pipeline.jobs.writing import check_addresses

    if getattr(arguments, "bootstrap", None) is not None:
        check_addresses(arguments.bootstrap)
    return LogSource(
        tuple(path.strip() for path in arguments.path.split(",")),
        choose(arguments.topic, arguments.pattern, arguments.assign),
        getattr(arguments, "bootstrap", None),
        getattr(arguments, "isolation", "read_committed") == "read_committed",
    )


def _spark(arguments: argparse.Namespace) -> SparkSession | None:
    from tidelog.pipeline.jobs.runner import require_arrow, start_spark

    require_arrow()
    return None if arguments.master == IN_PROCESS else start_spark(arguments.job, arguments.master)


def _progress(arguments: argparse.Namespace) -> Progress:
    from tidelog.pipeline.jobs.progress import Progress

    return Progress(arguments.job, quiet=arguments.quiet)


def _export(arguments: argparse.Namespace) -> int:
    from tidelog.pipeline.job_errors import BadRequestError
    from tidelog.pipeline.jobs.export import ExportRequest, export
    from tidelog.pipeline.jobs.replay import moment
    from tidelog.pipeline.jobs.reports.export_report import completeness, report
    from tidelog.pipeline.options.options import size_in_bytes

    before = arguments.complete_before
    before_ms = None if before is None else moment(before, "--complete-before")
    request = ExportRequest(
        source=_source(arguments),
        table=arguments.table,
        file_bytes=size_in_bytes({"--file-bytes": arguments.file_bytes}, "--file-bytes") or 1,
        commit_files=max(1, arguments.commit_files),
        commit_minutes=max(0.0, arguments.commit_minutes),
        headers=not arguments.no_headers,
        restart_recreated=arguments.restart_recreated,
        fail_on_data_loss=not arguments.accept_data_loss,
        keep_damaged=not arguments.fail_on_damage,
    )
    if arguments.warehouse is not None and arguments.catalog is None:
        raise BadRequestError(f"--warehouse {arguments.warehouse}: expected --catalog URI with it")
    if arguments.catalog is not None:
        from tidelog.pipeline.jobs.iceberg import IcebergTarget, export_to_iceberg

        target = IcebergTarget(arguments.catalog, arguments.table, arguments.warehouse)
        result = export_to_iceberg(_spark(arguments), request, target, _progress(arguments))
    else:
        result = export(_spark(arguments), request, _progress(arguments))
    print("\n".join(report(result, arguments.table)))
    if before_ms is None:
        return 0
    print(completeness(result, before_ms))
    return EXIT_FAILED if result.incomplete(before_ms) else 0


def _audit(arguments: argparse.Namespace) -> int:
    from tidelog.pipeline.jobs.audit import AuditRequest, audit
    from tidelog.pipeline.jobs.reports.audit_report import make_report_directory, summary, write_report

    request = AuditRequest(_source(arguments), arguments.table, not arguments.quick, _audited_iceberg(arguments))
    if arguments.report is not None:
        make_report_directory(arguments.report)  # an audit may take hours: not to be lost for a wrong name
    found = audit(_spark(arguments), request, _progress(arguments))
    if arguments.report is not None:
        write_report(found, arguments.report)
    print("\n".join(summary(found)))
    return EXIT_FAILED if found.is_wrong else 0


def _audited_iceberg(arguments: argparse.Namespace) -> IcebergTarget | None:
    """Raises BadRequestError."""
    from tidelog.pipeline.job_errors import BadRequestError
    from tidelog.pipeline.jobs.iceberg import IcebergTarget

    if arguments.catalog is None:
        return None
    if arguments.table is None:
        raise BadRequestError(f"--catalog {arguments.catalog}: expected --table NAMESPACE.TABLE with it")
    return IcebergTarget(arguments.catalog, arguments.table)


def _configuration(arguments: argparse.Namespace) -> Configuration:
    """Read topic configurations from the broker's metadata, and lay --config over them. Raises BadRequestError."""
    from tidelog.pipeline.job_errors import BadRequestError
    from tidelog.pipeline.jobs.offline_logs import Configuration

    overrides = {}
    for text in arguments.config:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise BadRequestError(f"--config {text}: expected KEY=VALUE")
        overrides[key.strip()] = value.strip()
    known: dict[str, Mapping[str, str]] = {}
    for path in arguments.path.split(","):
        known.update(_stored_configs(path.strip()))
    check_topic_configs(overrides)
    return Configuration(known, overrides)


def check_topic_configs(texts: Mapping[str, str]) -> None:
    """Raises BadRequestError at a key that no topic has."""
    from tidelog.log.config import TOPIC_CONFIG_DEF
    from tidelog.pipeline.job_errors import BadRequestError

    known = set(TOPIC_CONFIG_DEF.keys)
    for key in texts:
        if key not in known:
            raise BadRequestError(f"--config {key}: not a topic configuration; see docs/configuration.md")


def _stored_configs(path: str) -> dict[str, Mapping[str, str]]:
    """Topic -> its own configuration, from the metadata log of a data directory that has one. Raises JobError."""
    import os

    from tidelog.broker.metadata.log_reader import METADATA_DIRECTORY, read_metadata_image
    from tidelog.broker.metadata.metadata_image import TOPIC_RESOURCE
    from tidelog.log.system.file_system import OsFileSystem
    from tidelog.pipeline.job_errors import JobError
    from tidelog.protocol.errors import KafkaStorageError

    directory = os.path.join(path, METADATA_DIRECTORY)
    if not os.path.exists(directory):
        return {}
    try:
        image = read_metadata_image(OsFileSystem(), directory)
    except KafkaStorageError as error:
        raise JobError(str(error)) from error
    return {name: texts for (kind, name), texts in image.configs.items() if kind == TOPIC_RESOURCE}


def _index(arguments: argparse.Namespace) -> int:
    from tidelog.pipeline.jobs.index import IndexRequest, index, report

    request = IndexRequest(_source(arguments), _configuration(arguments), rebuild=arguments.rebuild)
    print("\n".join(report(index(_spark(arguments), request, _progress(arguments)))))
    return 0


def _compact(arguments: argparse.Namespace) -> int:
    from tidelog.pipeline.jobs.compact import CompactRequest, compact, report

    request = CompactRequest(_source(arguments), _configuration(arguments), dry_run=arguments.dry_run)
    results = compact(_spark(arguments), request, _progress(arguments))
    print("\n".join(report(results, dry_run=arguments.dry_run)))
    return 0


def _target(arguments: argparse.Namespace) -> Target:
    """Raises BadRequestError."""
    from tidelog.pipeline.job_errors import BadRequestError
    from tidelog.pipeline.jobs.writing import Target

    if arguments.rate is not None and not arguments.rate > 0:
        raise BadRequestError(f"--rate {arguments.rate}: expected more than 0 records per second")
    return Target(arguments.bootstrap, arguments.to, CODECS.index(arguments.compression), arguments.rate)


def _replay(arguments: argparse.Namespace) -> int:
    from tidelog.pipeline.jobs.replay import ReplayRequest, replay, replay_source, report
    from tidelog.pipeline.jobs.source import ALL_PATTERN

    names = {"subscribe": arguments.topic, "subscribePattern": arguments.pattern, "assign": arguments.assign}
    choice = {name: text for name, text in names.items() if text is not None}
    source = replay_source(arguments.path, choice or {"subscribePattern": ALL_PATTERN}, arguments.begin, arguments.end)
    request = ReplayRequest(source, _target(arguments), arguments.name or arguments.to, by_key=arguments.by_key)
    print("\n".join(report(replay(_spark(arguments), request, _progress(arguments)), request)))
    return 0


def _backfill(arguments: argparse.Namespace) -> int:
    from tidelog.pipeline.jobs.backfill import BackfillRequest, backfill, report

    request = BackfillRequest(tuple(arguments.files), _target(arguments), arguments.name or arguments.to)
    print("\n".join(report(backfill(_spark(arguments), request, _progress(arguments)), request)))
    return 0


JOBS = {
    "export": _export,
    "audit": _audit,
    "index": _index,
    "compact": _compact,
    "replay": _replay,
    "backfill": _backfill,
}
