"""Fixtures and hooks of all tests: brokers as real processes, their output beside a failure, the order of tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from benchmarks.rivals.process import BrokerProcess
from tests.support import lasting_jvm, unit_cost, worker_reports
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import TidelogProcess
from tests.support.collected import pytest_collection  # noqa: F401
from tests.support.depth import DEPTH
from tests.support.extensions import stale_modules
from tests.support.forked_workers import pytest_xdist_setupnodes  # noqa: F401
from tests.support.last_words import brokers_of
from tests.support.left_behind import pytest_runtest_setup, pytest_runtest_teardown, pytest_sessionstart  # noqa: F401
from tests.support.memory_directory import pytest_configure_node, tmp_path  # noqa: F401
from tests.support.property_tests import pytest_collection_finish  # noqa: F401
from tests.support.scheduling import FamilyScheduling, place_of
from tests.support.socket_origins import note_socket_origins
from tidelog.broker.loop.thread_rule import install

# `python -m pytest` puts the working directory on the path. `log` and `broker` could then be imported as packages of
# their own, which is impossible for a user: everything is imported below `tidelog`.
_ROOT = Path(__file__).resolve().parents[1]


def leave_root_out() -> None:
    """Remove the checkout's root from the import path."""
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != _ROOT]


leave_root_out()

# Machines are shared: how long an example takes to make or to run says nothing. A failing example prints the decorator
# that replays it.
settings.register_profile(
    "tidelog",
    deadline=None,
    max_examples=100 * DEPTH,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tidelog")


# "Loop thread only" is checked, here and in the broker processes that tests start.
os.environ["TIDELOG_DEBUG"] = "1"
install()
# Otherwise each process of a test that imports NumPy would start threads that spin for a tenth of a second.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse modules compiled from an older source, which would be imported instead; note where sockets are made.

    A forked worker has imported this module, but its import path and pytest's hook for imports are new.
    """
    leave_root_out()
    install()
    stale = stale_modules()
    if stale:
        pytest.exit(f"compiled from another source: {', '.join(stale)}; run: make extensions", returncode=4)
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # as in a shell's background; processes of tests would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(unit_cost)
    config.pluginmanager.register(lasting_jvm)
    config.pluginmanager.register(worker_reports)
    worker_reports.send_fewer(config)
    note_socket_origins()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FamilyScheduling | None:
    """Divide the tests among workers by `FamilyScheduling` with ``--dist loadfile``."""
    return FamilyScheduling(config, log) if config.option.dist == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort a worker's tests by family (``tests/support/scheduling.py``); within a family the order stays random."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place_of(item.nodeid))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--broker=kafka``, which checks the client tests themselves: a failure with it is not Tidelog's fault."""
    parser.addoption("--broker", choices=["tidelog", "kafka"], default="tidelog", help="who serves the client tests")


def _process(request: pytest.FixtureRequest, directory: Path) -> BrokerProcess:
    if request.config.getoption("--broker") == "kafka":
        return ApacheKafka(directory)
    return TidelogProcess(directory)


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker shared by the tests of one module, which use topics of their own and never stop it."""
    with _process(request, tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture
def fresh_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of the test's own, which it may kill and restart."""
    with _process(request, tmp_path_factory.mktemp("fresh-broker")) as process:
        yield process


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what each broker of a failed test printed on standard error."""
    report = yield
    if report.failed:
        for broker in brokers_of(getattr(item, "funcargs", {}).values()):
            report.sections.append((f"standard error of {broker.name} at {broker.directory}", broker.output()))
    return report
