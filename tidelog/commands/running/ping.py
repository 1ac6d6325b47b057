"""``tidelog ping``: one request and response, for health checks."""

from __future__ import annotations

import os
import time

import click

from tidelog.client.cluster import Cluster
from tidelog.commands.frame.commands import Command
from tidelog.commands.frame.options import ClientSettings, client_options, json_option
from tidelog.commands.frame.output import print_json

DEFAULT_TIMEOUT_S = 3.0
LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


@click.command(cls=Command)
@client_options(DEFAULT_TIMEOUT_S)
@click.option("--local", is_flag=True, help="the broker on this machine that the KAFKA_* variables configure")
@click.option("--quiet", is_flag=True, help="print nothing, only set the exit code")
@json_option
def command(*, settings: ClientSettings, local: bool, quiet: bool, as_json: bool) -> None:
    """Ask a broker for its API versions; exit code 0 when it answers."""
    start = time.perf_counter()
    given = local_bootstrap() if local else settings.bootstrap
    with Cluster(given, settings.timeout_s, settings.security) as cluster:
        client = cluster.any_client()
        bootstrap, served = client.bootstrap, client.api_versions()
    elapsed_ms = (time.perf_counter() - start) * 1000
    if as_json:
        print_json({"bootstrap": bootstrap, "apis": len(served), "milliseconds": round(elapsed_ms, 1)})
    elif not quiet:
        print(f"{bootstrap} answers: {len(served)} APIs, {elapsed_ms:.1f} ms")


def local_bootstrap() -> str:
    """Find the local address of the first listener that the environment configures. Raises UsageError."""
    from tidelog.broker.config.broker_config import BrokerConfig
    from tidelog.protocol.config_def import ConfigError

    try:
        endpoint = BrokerConfig.load(None, os.environ).listeners[0]
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    host = LOOPBACK.get(endpoint.host, endpoint.host)
    return f"[{host}]:{endpoint.port}" if ":" in host else f"{host}:{endpoint.port}"
