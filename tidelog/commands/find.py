"""``tidelog find``: prints records of a topic by key, tag or time."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

from tidelog.client import DEFAULT_BOOTSTRAP, ClientError
from tidelog.find import FoundRecord, Tidelog

HELP = "find records by key, tag and time, newest first"
DEFAULT_MAX = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--key", help="records with exactly this key (the topic needs index.keys=true)")
    parser.add_argument("--tag", help="records with this value in the header that index.tag.header names")
    parser.add_argument("--from", dest="begin", metavar="TIME", help="not older; ms, ISO 8601, 09:00, or 15m ago")
    parser.add_argument("--to", dest="end", metavar="TIME", help="not newer")
    parser.add_argument(
        "--max", type=positive, default=DEFAULT_MAX, metavar="N", help="at most N; default: %(default)s"
    )
    parser.add_argument("--all", action="store_true", help="every record that matches")
    parser.add_argument("--no-wait", action="store_true", help="answer at once, even if the index has not caught up")
    parser.add_argument(
        "--isolation",
        choices=("read_uncommitted", "read_committed"),
        default="read_uncommitted",
        help="read_committed leaves out records of open and aborted transactions; default: %(default)s",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line, keys and values in base64")
    parser.add_argument("--bootstrap", default=DEFAULT_BOOTSTRAP, metavar="HOST:PORT", help="default: %(default)s")


def positive(text: str) -> int:
    """Parse a number from 1 on, for argparse."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"invalid value {text!r}: expected a number from 1 on")
    return number


def run(arguments: argparse.Namespace) -> int:
    count = 0
    try:
        for record in ask(arguments):
            print(json_line(record) if arguments.json else text_line(record))
            count += 1
    except BrokenPipeError:
        raise  # standard output was closed: the command line ends with its own exit code
    except (ClientError, OSError) as error:
        print(f"tidelog find: {error}", file=sys.stderr)
        return 1
    if not arguments.json and not count:
        print("nothing found", file=sys.stderr)
    return 0


def ask(arguments: argparse.Namespace) -> Iterator[FoundRecord]:
    """Find the records that the arguments ask for. Raises ClientError."""
    return Tidelog(arguments.bootstrap).find(
        arguments.topic,
        key=arguments.key,
        tag=arguments.tag,
        begin=arguments.begin,
        end=arguments.end,
        max_records=None if arguments.all else arguments.max,
        wait=not arguments.no_wait,
        isolation=arguments.isolation,
    )


def text_line(record: FoundRecord) -> str:
    """Format one record as text: place, time, key and value, tab-separated."""
    moment = datetime.fromtimestamp(record.timestamp / 1000, UTC).astimezone().isoformat(timespec="milliseconds")
    key, value = ("-" if part is None else part.decode("utf-8", "replace") for part in (record.key, record.value))
    return f"{record.topic}-{record.partition}@{record.offset}\t{moment}\t{key}\t{value}"


def json_line(record: FoundRecord) -> str:
    """Format one record as a JSON object."""
    fields = record._asdict()
    fields["key"], fields["value"] = encode(record.key), encode(record.value)
    fields["headers"] = [[name, encode(value)] for name, value in record.headers]
    return json.dumps(fields)


def encode(value: bytes | None) -> str | None:
    """Encode bytes as base64."""
    return None if value is None else base64.b64encode(value).decode()
