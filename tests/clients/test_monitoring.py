"""A real Prometheus with a broker under load: metrics and rules are linted, queries have results, alerts fire and end.

Run by ``make monitoring``: Debian's package has 100 MB.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

import tidelog
from benchmarks.rivals.process import free_port
from tests.support.power.waiting import wait_until
from tests.support.requirements import require_tool

pytestmark = pytest.mark.skipif(not os.environ.get("TIDELOG_MONITORING"), reason="make monitoring")

MONITORING = Path(__file__).resolve().parents[2] / "docker" / "monitoring"
INSTALL = "apt-get install --no-install-recommends prometheus"


class Prometheus:
    """A Prometheus process with this repository's configuration, in quick rounds."""

    def __init__(self, directory: Path, target: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        config = (MONITORING / "prometheus.yml").read_text().replace("15s", "1s").replace("127.0.0.1:9644", target)
        rules = re.sub(r"for: \w+", "for: 0s", (MONITORING / "rules.yml").read_text())
        (directory / "prometheus.yml").write_text(config)
        (directory / "rules.yml").write_text(rules)
        command = [
            require_tool("prometheus", INSTALL), f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={self.address}",
        ]  # fmt: skip
        self._log = (directory / "log").open("wb")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        self._log.close()

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of Prometheus' API; an empty list while it does not answer."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        except OSError:
            return []

    def query(self, expression: str) -> list[Any]:
        found = self.get("query", query=expression)
        return list(found["result"]) if found else []

    def alerts(self) -> set[str]:
        """Return the names of the alerts that fire."""
        found = self.get("alerts")
        return {one["labels"]["alertname"] for one in found["alerts"] if one["state"] == "firing"} if found else set()


class Load:
    """A producer and a consumer group that work until they are stopped."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap})
        while not self._is_over.wait(0.05):
            producer.produce("orders", b"paid", b"4711")
            producer.poll(0)
        producer.flush(10)

    def _consume(self) -> None:
        settings = {"bootstrap.servers": self._bootstrap, "group.id": "billing", "auto.commit.interval.ms": 500}
        consumer = Consumer(settings)
        consumer.subscribe(["orders"])
        while not self._is_over.is_set():
            consumer.poll(0.1)
        consumer.close()


class World:
    """A broker under load and its Prometheus."""

    def __init__(self, directory: Path) -> None:
        port = free_port()
        self.admin = f"127.0.0.1:{port}"
        self.broker = tidelog.Broker({"admin.listener": self.admin}, lab=True).start()
        self.load = Load(self.broker.bootstrap)
        self.prometheus = Prometheus(directory, self.admin)

    def stop(self) -> None:
        self.load.stop()
        self.prometheus.stop()
        self.broker.stop()

    def metrics(self) -> bytes:
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=60) as answer:
            return bytes(answer.read())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_tool("prometheus", INSTALL)
    world = World(tmp_path_factory.mktemp("prometheus"))
    yield world
    world.stop()


def promtool(*words: str, given: bytes = b"") -> None:
    """Run promtool; it must find nothing."""
    done = subprocess.run([require_tool("promtool", INSTALL), *words], input=given, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    assert b"SUCCESS" in done.stdout or not done.stdout + done.stderr, (done.stdout + done.stderr).decode()


def test_metrics_and_rules_are_clean(world: World) -> None:
    wait_until(lambda: b"tidelog_group_lag_records{" in world.metrics())
    promtool("check", "metrics", given=world.metrics())
    promtool("check", "rules", str(MONITORING / "rules.yml"))
    promtool("check", "config", str(MONITORING / "prometheus.yml"))


def queries() -> list[str]:
    """Return the dashboard's queries as Grafana sends them, for all brokers and a short interval."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return [query.replace("$instance", ".+").replace("$__rate_interval", "10s") for query in found]


def test_grafanas_own_types_know_every_field_of_the_dashboard() -> None:
    """The SDK of Grafana reads it and writes it again with all that was there; its types are of Grafana's schemas."""
    sdk = "grafana_foundation_sdk"
    dashboards = pytest.importorskip(f"{sdk}.models.dashboard", reason=f"pip install {sdk}")
    importlib.import_module(f"{sdk}.cog.plugins").register_default_plugins()
    encoder = importlib.import_module(f"{sdk}.cog.encoder").JSONEncoder(sort_keys=True)
    given = json.loads((MONITORING / "dashboard.json").read_text())
    written = json.loads(encoder.encode(dashboards.Dashboard.from_json(given)))
    assert list(find_lost(given, written)) == []


def find_lost(given: Any, written: Any, place: str = "") -> Iterator[str]:
    """Find the places of what is another value in ``written``, or is not there; it may have more."""
    if isinstance(given, dict) and isinstance(written, dict):
        for key, value in given.items():
            yield from find_lost(value, written.get(key), f"{place}.{key}")
    elif isinstance(given, list) and isinstance(written, list) and len(given) == len(written):
        for number, (one, other) in enumerate(zip(given, written, strict=True)):
            yield from find_lost(one, other, f"{place}[{number}]")
    elif given != written:
        yield place


@pytest.mark.parametrize("query", queries())
def test_every_query_of_the_dashboard_has_data(world: World, query: str) -> None:
    def has_data() -> bool:
        values = [float(one["value"][1]) for one in world.prometheus.query(query)]
        return bool(values) and any(value == value for value in values)  # histogram_quantile of nothing is NaN

    wait_until(has_data)


def test_a_full_disk_raises_an_alert_that_ends_with_it(world: World) -> None:
    with world.broker.lab.full_disk():
        wait_until(lambda: "TidelogDiskFull" in world.prometheus.alerts())
    wait_until(lambda: "TidelogDiskFull" not in world.prometheus.alerts())


def test_a_stopped_broker_raises_an_alert_that_ends_when_it_is_back(world: World) -> None:
    world.load.stop()
    port = int(world.broker.bootstrap.rpartition(":")[2])
    world.broker.stop()
    wait_until(lambda: "TidelogDown" in world.prometheus.alerts())
    world.broker = tidelog.Broker({"admin.listener": world.admin}, port=port, lab=True).start()
    wait_until(lambda: "TidelogDown" not in world.prometheus.alerts())
