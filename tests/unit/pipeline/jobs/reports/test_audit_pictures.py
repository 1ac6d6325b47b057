"""Pictures of an audit: times without records, kinds of offsets, lost offsets."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tests.support.requirements import missing
from tidelog.pipeline.audit.buckets import BUCKET_MS
from tidelog.pipeline.audit.segment import Gap, SegmentAudit
from tidelog.pipeline.jobs.audit import AuditResult, PartitionAudit
from tidelog.pipeline.jobs.reports.audit_pictures import MAX_MS, MIN_MS, TIME_STEPS, draw, shares, timeline

pytestmark = pytest.mark.usefixtures("imported_matplotlib")


def segment(base: int, following: int, *gaps: Gap, compacted: int = 0, lost: int = 0) -> SegmentAudit:
    """Build a segment of these offsets; ``compacted`` and ``lost`` count the gaps' offsets, too."""
    return SegmentAudit(
        "orders", 0, base, "log", next_offset=following, compacted_offsets=compacted, lost_offsets=lost, gaps=[*gaps]
    )


def partition(*segments: SegmentAudit, topic: str = "orders", gaps: tuple[Gap, ...] = ()) -> PartitionAudit:
    first, last = segments[0].base_offset, segments[-1].next_offset
    return PartitionAudit(topic, 0, "id", first, last, [*segments], gaps=[*gaps])


def result(*partitions: PartitionAudit) -> AuditResult:
    return AuditResult([*partitions], None, True, 0, 1.0)


def counted(buckets: dict[int, int], topic: str = "orders") -> PartitionAudit:
    found = partition(segment(0, 10), topic=topic)
    found.buckets = {number * BUCKET_MS: (count, 0) for number, count in buckets.items()}
    return found


def test_ten_minutes_without_records_are_at_0() -> None:
    found = timeline(result(counted({100: 5, 103: 7}), counted({102: 1}, "other")))
    assert found is not None
    assert {topic: counts.tolist() for topic, counts in found.counts.items()} == {
        "orders": [5, 0, 0, 7],
        "other": [0, 0, 1, 0],
    }
    assert (found.minutes, found.edges[0]) == (10, 100 * BUCKET_MS)


def test_a_long_time_is_drawn_in_longer_steps_and_no_record_is_left_out() -> None:
    buckets = dict.fromkeys(range(0, 10 * TIME_STEPS, 7), 3)
    found = timeline(result(counted(buckets)))
    assert found is not None
    assert len(found.counts["orders"]) <= TIME_STEPS
    assert int(found.counts["orders"].sum()) == 3 * len(buckets)
    assert found.minutes % 10 == 0


def test_no_records_are_no_timeline() -> None:
    assert timeline(result(partition(segment(0, 10)))) is None


@pytest.mark.parametrize(
    ("audited", "expected"),
    [
        (partition(segment(0, 40)), {"present": [1, 1, 1, 1]}),
        # 15 of the first segment's 20 offsets were compacted, inside its batches
        (
            partition(segment(0, 20, compacted=15), segment(20, 40)),
            {"present": [0.25, 0.25, 1, 1], "compacted": [0.75, 0.75, 0, 0]},
        ),
        # a gap of 10 between batches, and 5 of the other 10 inside
        (
            partition(segment(0, 20, Gap(0, 10, "compacted"), compacted=15), segment(20, 40)),
            {"present": [0, 0.5, 1, 1], "compacted": [1, 0.5, 0, 0]},
        ),
        (
            partition(segment(0, 40, Gap(15, 20, "lost"), lost=5)),
            {"present": [1, 0.5, 1, 1], "lost": [0, 0.5, 0, 0]},
        ),
        # between segments
        (
            partition(segment(0, 10), segment(20, 40), gaps=(Gap(10, 20, "lost"),)),
            {"present": [1, 0, 1, 1], "lost": [0, 1, 0, 0]},
        ),
    ],
)
def test_shares_of_offsets(audited: PartitionAudit, expected: dict[str, list[float]]) -> None:
    found = shares(audited, np.linspace(0, 40, 5))
    for kind, values in found.items():
        assert values.tolist() == pytest.approx(expected.get(kind, [0] * 4)), kind


@pytest.mark.parametrize(
    "audited",
    [
        result(),
        result(partition(segment(0, 0))),
        result(counted({1: 5}), partition(segment(0, 100, Gap(0, 1, "lost"), lost=1), topic="b")),
        result(*(counted({number: 1}, f"topic-{number % 2}") for number in range(3))),
        result(counted({-(10**14) // BUCKET_MS: 1, 0: 1, 249 * 10**12 // BUCKET_MS: 1})),
        result(counted({MIN_MS // BUCKET_MS + 1: 1, MAX_MS // BUCKET_MS - 1: 1})),
    ],
    ids=["nothing", "empty", "lost", "many", "strange times", "long time"],
)
def test_every_audit_can_be_drawn(audited: AuditResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.pipeline.jobs.reports.audit_pictures.MAX_PARTITIONS", 2)
    if importlib.util.find_spec("matplotlib") is None:
        missing("matplotlib", "pip install matplotlib")
    assert draw(audited, str(tmp_path)) == ["timeline.png", "offsets.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())


def test_one_lost_offset_of_a_million_is_red_in_the_picture(tmp_path: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        missing("matplotlib", "pip install matplotlib")
    from matplotlib.image import imread

    draw(result(partition(segment(0, 10**6, Gap(5 * 10**5, 5 * 10**5 + 1, "lost"), lost=1))), str(tmp_path))
    pixels = imread(tmp_path / "offsets.png")
    is_red = (pixels[..., 0] > 0.7) & (pixels[..., 1] < 0.4) & (pixels[..., 2] < 0.4)
    below_the_legend = is_red[pixels.shape[0] // 4 :]
    assert below_the_legend.any()
