"""Modules import each other in one direction only. Late imports and those for type checking count."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.module_facts import facts_of
from tests.unit.test_tidy import FOLDERS, ROOT, modules_in, relative

Graph = dict[str, AbstractSet[str]]

BELOW_TIDELOG = {"broker", "cleaner", "log", "pipeline", "protocol"}

CODERS = "a message's coder is built at its first use"
LATE = "imported late, for the few requests that need it"
PARTS = "its parts are functions over it"
ROLE = "a partition has a role, which acts on the partition"
BACKWARD = {
    "broker.broker -> broker.services": "a broker names its services, and they are built from it",
    "broker.controller.topic_changes -> broker.controller.topics": "steps of changes, and the changes themselves",
    "broker.handlers.fetch -> broker.handlers.long_fetch": LATE,
    "broker.handlers.fetch -> broker.handlers.replica_fetch": LATE,
    "broker.handlers.produce -> broker.handlers.long_produce": LATE,
    "broker.network.shell -> broker.network.connection": "the connections of a loop, and what they share",
    "broker.replica.partition -> broker.replica.replication.leading": ROLE,
    "broker.replica.partition -> broker.replica.replication.roles": ROLE,
    "broker.requests.direct -> broker.requests.route": "the compiled half of a route, and its answers",
    "log.recovery.segment_recovery -> log.recovery.walk": "the compiled half of a walk, imported late",
    "log.unified_log -> log.fetch": PARTS,
    "log.unified_log -> log.retention": PARTS,
    "log.unified_log -> log.timestamps": PARTS,
    "protocol.schema.fields -> protocol.schema.decoder": CODERS,
    "protocol.schema.fields -> protocol.schema.encoder": CODERS,
    "protocol.schema.fields -> protocol.schema.engine": CODERS,
    "protocol.schema.fields -> protocol.schema.source": CODERS,
}
"""Imports below ``tidelog`` that run back, each with its reason. Without them there is no circle. The list may only
become shorter."""


@cache
def imports() -> Graph:
    """Map each module of the repository to the modules of the repository that it imports."""
    paths = {module_name(path): path for folder in FOLDERS for path in modules_in(folder)}
    return {name: (facts_of(path).imported & paths.keys()) - {name} for name, path in paths.items()}


def module_name(path: Path) -> str:
    """Return the name by which a module or package is imported."""
    name = relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return f"tidelog.{name}" if path.relative_to(ROOT).parts[0] in BELOW_TIDELOG else name


def without(graph: Graph, left_out: AbstractSet[tuple[str, str]]) -> Graph:
    return {name: {each for each in imported if (name, each) not in left_out} for name, imported in graph.items()}


def find_circle(graph: Graph) -> list[str]:
    """Return the modules of one circle, each imported by the one after it; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def ends_of(backward: str) -> tuple[str, str]:
    """Return the importing module of an entry of BACKWARD, and the imported one."""
    importing, _, imported = backward.partition(" -> ")
    return f"tidelog.{importing}", f"tidelog.{imported}"


BACKWARD_IMPORTS = {ends_of(each) for each in BACKWARD}


def test_modules_import_each_other_in_one_direction() -> None:
    circle = find_circle(without(imports(), BACKWARD_IMPORTS))
    assert not circle, " <- ".join(circle)


@pytest.mark.parametrize("backward", BACKWARD)
def test_an_import_that_runs_back_closes_a_circle(backward: str) -> None:
    importing, imported = ends_of(backward)
    assert imported in imports()[importing], "it is gone: take it out of BACKWARD"
    left = without(imports(), BACKWARD_IMPORTS - {(importing, imported)})
    assert find_circle(left), "it runs forward: take it out of BACKWARD"


def test_a_circle_is_found() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "c", "b", "a"]
    assert not find_circle({"a": {"b", "c"}, "b": {"c"}, "c": set()})
