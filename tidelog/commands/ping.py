"""``tidelog ping``: one real round trip, for health checks."""

from __future__ import annotations

import argparse
import sys
import time

from tidelog.client import DEFAULT_BOOTSTRAP, Client, ClientError

HELP = "ask a broker for its API versions; exit code 0 when it answers"
DEFAULT_TIMEOUT_S = 3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bootstrap", default=DEFAULT_BOOTSTRAP, metavar="HOST:PORT", help="default: %(default)s")
    parser.add_argument(
        "--timeout", type=float, default=DEFAULT_TIMEOUT_S, metavar="SECONDS", help="give up after this; default: 3"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing, only set the exit code")


def run(arguments: argparse.Namespace) -> int:
    start = time.perf_counter()
    try:
        with Client(arguments.bootstrap, arguments.timeout) as client:
            served = client.api_versions()
    except ClientError as error:
        print(f"tidelog ping: {error}", file=sys.stderr)
        return 1
    if not arguments.quiet:
        elapsed_ms = (time.perf_counter() - start) * 1000
        print(f"{arguments.bootstrap} answers: {len(served)} APIs, {elapsed_ms:.1f} ms")
    return 0
