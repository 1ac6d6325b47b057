"""Audits against an Iceberg table: the rows of its newest snapshot are compared with the log, whichever files have
them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.iceberg import NAME, table_of, target_below
from tests.support.pipelines import TOPIC_ID, DataDirectory, fill
from tidelog.pipeline.errors import TopicRecreatedError
from tidelog.pipeline.export.file import file_name
from tidelog.pipeline.export.manifest import id_text
from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.jobs import iceberg as iceberg_job
from tidelog.pipeline.jobs.audit import AuditRequest, AuditResult, audit
from tidelog.pipeline.jobs.export import ExportRequest
from tidelog.pipeline.jobs.iceberg import IcebergTarget, export_to_iceberg
from tidelog.pipeline.jobs.reports import audit_compare
from tidelog.pipeline.jobs.reports.audit_report import findings
from tidelog.pipeline.plan.selection import PartitionDirectory

pytestmark = pytest.mark.usefixtures("catalogs")


@pytest.fixture
def target(tmp_path: Path) -> IcebergTarget:
    return target_below(tmp_path)


def export(data: DataDirectory, target: IcebergTarget, **fields: Any) -> None:
    export_to_iceberg(None, ExportRequest(data.source(), "", **fields), target)


def audited(data: DataDirectory, target: IcebergTarget) -> AuditResult:
    return audit(None, AuditRequest(data.source(), NAME, iceberg=target))


def differences(result: AuditResult) -> list[str]:
    return [line for partition in result.partitions for line in findings(partition)]


@pytest.mark.parametrize("suffix", ["", "-r0123abcd", "-" + 8 * "0a1b", "-" + 8 * "0a1b" + "-0123abcd"])
@pytest.mark.parametrize("split", ["", "-h490000", "-d-3"])
def test_files_are_known_by_the_names_of_exports(suffix: str, split: str) -> None:
    """In an object store these names also have the run and the attempt."""
    name = file_name("a-b", TOPIC_ID, 3, (5, 70), suffix).removesuffix(".parquet") + split + ".parquet"
    (match,) = audit_compare._match_names([f"s3://bucket/data/{name}"], "a-b")
    assert (match["id"], match["partition"], int(match["start"]), int(match["end"])) == (id_text(TOPIC_ID), "3", 5, 70)


@pytest.mark.parametrize("offsets", [(5,), (5, 70)])
@pytest.mark.parametrize("suffix", ["", "-r0123abcd", "-" + 8 * "0a1b" + "-0123abcd-h-490000"])
def test_a_name_fits_a_directory_and_is_the_topics_own(offsets: tuple[int, ...], suffix: str) -> None:
    names = set()
    for length in range(1, 250):
        topic, partition = "a-" * 124 + "z", 10**5
        topics = [topic[:length], topic[: length - 1] + "y"]
        for one in topics:
            name = file_name(one, TOPIC_ID, partition, offsets, suffix)
            assert len(name) <= 255
            names.add(name)
            numbers = "-".join(f"{offset:020d}" for offset in offsets)
            whole = f"{one}-{id_text(TOPIC_ID)}-{partition}-{numbers}{suffix}.parquet"
            assert name == whole or len(whole) > 255, "names of earlier releases stay as they are"
            later = file_name(one, TOPIC_ID, partition, (99, 120)[: len(offsets)], suffix)
            assert name < later
            if len(offsets) == 2:
                found = [len(audit_compare._match_names([name], other)) for other in (one, *topics, "a")]
                assert found == [1, one == topics[0], one == topics[1], one == "a"]
                here = PartitionDirectory(one, TOPIC_ID, partition, "d")
                assert audit_compare._letters_in((name,), here, 69, 80) == (name,)
                assert audit_compare._letters_in((name,), here, 70, 80) == ()
    assert len(names) == 2 * 249


def test_a_range_is_sent_with_its_own_dead_letters_alone() -> None:
    here = PartitionDirectory("t", TOPIC_ID, 1, "t-1")
    mine = [file_name("t", TOPIC_ID, 1, offsets, "-r0123abcd") for offsets in ((0, 11), (10, 20), (19, 40))]
    others = [file_name("t", TOPIC_ID, 1, offsets) for offsets in ((0, 10), (20, 30))]
    others += [file_name("t", TOPIC_ID, 0, (10, 20)), file_name("u", TOPIC_ID, 1, (10, 20))]
    assert audit_compare._letters_in((*others, *mine, "strange"), here, 10, 20) == (*mine, "strange")


def test_a_table_equals_the_log_range_by_range(data: DataDirectory, target: IcebergTarget) -> None:
    fill(data.log("orders"), 20)
    fill(data.log("orders", 1), 3)
    fill(data.log("other"), 2)
    export(data, target, file_bytes=1000)
    fill(data.log("orders"), 2)
    export(data, target)
    result = audited(data, target)
    assert (result.is_wrong, result.table) == (False, NAME)
    ranges = [(c.start, c.end, c.log_rows, c.table_rows) for c in result.partitions[0].comparisons]
    assert len(ranges) > 2
    assert (ranges[0][0], ranges[-1][1], sum(r[2] for r in ranges), sum(r[3] for r in ranges)) == (0, 110, 110, 110)


def test_rows_in_files_of_others_are_compared_too(
    data: DataDirectory, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_compare, "RANGE_OFFSETS", 7)
    fill(data.log("orders"), 4)
    export(data, target)
    table = table_of(target)
    table.overwrite(table.scan().to_arrow())
    result = audited(data, target)
    assert not result.is_wrong
    assert [(c.start, c.end) for c in result.partitions[0].comparisons] == [(0, 7), (7, 14), (14, 20)]


def test_deleted_added_and_changed_rows_are_reported(data: DataDirectory, target: IcebergTarget) -> None:
    fill(data.log("orders"), 4)
    export(data, target)
    table = table_of(target)
    row = table.scan("offset == 7").to_arrow()
    table.append(row)
    table.delete("offset == 3")
    assert differences(audited(data, target)) == [
        "the table differs in offsets 0 to 19: 1 twice (offsets 7); 1 missing (offsets 3)"
    ]


def test_rows_of_two_topics_of_one_name_are_refused(data: DataDirectory, target: IcebergTarget) -> None:
    fill(data.log("orders"), 1)
    export(data, target)
    data.close()
    os.rename(data.path / "orders-0", data.path.parent / "gone")
    fill(data.log("orders", topic_id=bytes(range(1, 17))), 1)
    with pytest.raises(TopicRecreatedError, match="the table holds id"):
        audited(data, target)
    export(data, target, restart_recreated=True)
    with pytest.raises(TopicRecreatedError, match=r"lake\.events also has rows of a deleted topic orders"):
        audited(data, target)


def test_a_missing_table_or_one_without_an_export_is_refused(data: DataDirectory, target: IcebergTarget) -> None:
    fill(data.log("orders"), 1)
    with pytest.raises(BadRequestError, match=r"Iceberg table lake\.events is not in the catalog sqlite"):
        audited(data, target)
    catalog = iceberg_job._catalog(target)
    catalog.create_namespace("lake")
    export(data, IcebergTarget(target.catalog, "lake.other", target.warehouse))
    catalog.create_table(NAME, catalog.load_table("lake.other").schema())
    with pytest.raises(BadRequestError, match=r"lake\.events has no version yet"):
        audited(data, target)
