"""Division of the tests among workers, and the family that begins."""

from __future__ import annotations

from tests.support.scheduling import place_of, scope_of


def test_a_module_stays_on_one_worker() -> None:
    assert scope_of("tests/faults/test_soak.py::test_long[a::b]") == "tests/faults/test_soak.py"


def test_modules_that_share_a_spark_session_stay_together() -> None:
    modules = ["tests/spark/test_sink.py", "tests/spark/test_stream.py", "tests/spark/test_cluster.py"]
    assert len({scope_of(f"{module}::test_rows") for module in modules}) == 2


def test_tests_that_wait_begin_and_unit_tests_come_last() -> None:
    names = ["tests/unit/test_tidy.py::a", "tests/clients/test_tls.py::b", "tests/spark/test_sink.py::c"]
    assert sorted(names, key=place_of) == names[::-1]
