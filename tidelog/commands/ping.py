"""``tidelog ping``: one real round trip, for health checks."""

from __future__ import annotations

import argparse
import os
import sys
import time

from tidelog.client import DEFAULT_BOOTSTRAP, Client, ClientError
from tidelog.protocol.config_def import ConfigError

HELP = "ask a broker for its API versions; exit code 0 when it answers"
DEFAULT_TIMEOUT_S = 3.0
MAX_TIMEOUT_S = 86_400.0
EXIT_FAILED = 1
EXIT_USAGE = 2
LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    address = parser.add_mutually_exclusive_group()
    address.add_argument("--bootstrap", default=DEFAULT_BOOTSTRAP, metavar="HOST:PORT", help="default: %(default)s")
    address.add_argument(
        "--local", action="store_true", help="the broker on this machine that the KAFKA_* variables configure"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=DEFAULT_TIMEOUT_S, metavar="SECONDS", help="give up after this; default: 3"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing, only set the exit code")


def seconds(text: str) -> float:
    """Parse a time-out in seconds. Raises ValueError unless it is a number above 0."""
    value = float(text)
    if not 0 < value < MAX_TIMEOUT_S:
        raise ValueError(text)
    return value


def run(arguments: argparse.Namespace) -> int:
    start = time.perf_counter()
    try:
        bootstrap = local_bootstrap() if arguments.local else arguments.bootstrap
        with Client(bootstrap, arguments.timeout) as client:
            served = client.api_versions()
    except ClientError as error:
        print(f"tidelog ping: {error}", file=sys.stderr)
        return EXIT_FAILED
    except ConfigError as error:
        print(f"tidelog ping: {error}", file=sys.stderr)
        return EXIT_USAGE
    if not arguments.quiet:
        elapsed_ms = (time.perf_counter() - start) * 1000
        print(f"{bootstrap} answers: {len(served)} APIs, {elapsed_ms:.1f} ms")
    return 0


def local_bootstrap() -> str:
    """Find the local address of the first listener that the environment configures."""
    from tidelog.broker.config.broker_config import BrokerConfig

    endpoint = BrokerConfig.load(None, os.environ).listeners[0]
    host = LOOPBACK.get(endpoint.host, endpoint.host)
    return f"[{host}]:{endpoint.port}" if ":" in host else f"{host}:{endpoint.port}"
