"""An audit as people read it: lines for a terminal, and report.md, report.html, report.json with pictures.

    DIR/report.json       everything, numbers as they are
    DIR/report.md         the same for reading, pictures beside it
    DIR/report.html       one page with its pictures inside
    DIR/timeline.png      records per ten minutes, a line per topic
    DIR/offsets.png       each partition's offsets: there, compacted, lost

Pictures need matplotlib; without it the report has none and says so.
"""

from __future__ import annotations

import base64
import html
import importlib.util
import json
import os
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pipeline.audit_reference import CHECKSUM_VERSION
from pipeline.audit_table import Comparison
from pipeline.jobs.audit import SUMMED, AuditResult, PartitionAudit
from pipeline.jobs.errors import BadRequestError

SHOWN_FINDINGS = 20
LABELS = {
    "bytes_read": "bytes",
    "batches": "batches",
    "records": "committed records",
    "control_batches": "transaction markers",
    "aborted_records": "aborted records",
    "open_records": "records of open transactions",
    "compacted_offsets": "offsets compacted away",
    "lost_offsets": "offsets lost",
    "corrupt_batches": "corrupt batches",
    "unreadable_bytes": "unreadable bytes",
    "duplicate_batches": "duplicate batches",
    "index_entries": "index entries checked",
    "index_faults": "index entries wrong",
}
PICTURES = ("timeline.png", "offsets.png")


def summary(result: AuditResult) -> list[str]:
    """Lines for a terminal: totals, then every partition with a fault."""
    rate = result.total("bytes_read") / max(result.seconds, 1e-6) / 1e9
    lines = [f"audited {len(result.partitions)} partitions, {result.total('bytes_read'):,} bytes, {rate:.2f} GB/s"]
    lines += [f"  {LABELS[name]}: {result.total(name):,}" for name in LABELS if name != "bytes_read"]
    for partition in result.partitions:
        faults = findings(partition)
        lines += [f"{partition.name}: {fault}" for fault in faults[:SHOWN_FINDINGS]]
        if len(faults) > SHOWN_FINDINGS:
            lines.append(f"{partition.name}: and {len(faults) - SHOWN_FINDINGS} more")
    lines.append("something is wrong" if result.is_wrong else "everything is in order")
    return lines


def findings(partition: PartitionAudit) -> list[str]:
    """What is wrong with a partition, one line each."""
    lines = [str(finding) for segment in partition.segments for finding in segment.findings]
    lines += [str(finding) for finding in partition.findings]
    gaps = [gap for segment in partition.segments for gap in segment.gaps] + partition.gaps
    lines += [f"offsets {gap.start} to {gap.end - 1} are lost" for gap in gaps if gap.kind == "lost"]
    for comparison in partition.comparisons:
        if not partition.accepts(comparison):
            lines.append(difference(comparison))
    return lines


def difference(comparison: Comparison) -> str:
    """How table and log differ over one range, in a line."""
    kinds = [
        f"{getattr(comparison, kind)} {kind} (offsets {', '.join(map(str, offsets))}"
        f"{', ...' if getattr(comparison, kind) > len(offsets) else ''})"
        for kind, offsets in comparison.shown.items()
    ]
    return f"the table differs in offsets {comparison.start} to {comparison.end - 1}: {'; '.join(kinds)}"


def as_json(result: AuditResult) -> dict[str, Any]:
    """Everything of the report, ready for JSON. Checksums are in hex."""
    return {
        "format": "tidelog-audit 2",
        "checksum": f"tidelog-record-hash {CHECKSUM_VERSION}",
        "created": _moment(result.created_ms),
        "seconds": round(result.seconds, 3),
        "table": result.table,
        "in_order": not result.is_wrong,
        "totals": {name: result.total(name) for name in SUMMED},
        "partitions": [_partition_json(partition) for partition in result.partitions],
    }


def _partition_json(partition: PartitionAudit) -> dict[str, Any]:
    gaps = [gap for segment in partition.segments for gap in segment.gaps] + partition.gaps
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "topic_id": partition.topic_id,
        "start": partition.start,
        "end": partition.end,
        "in_order": not partition.is_wrong,
        **{name: partition.total(name) for name in SUMMED},
        "findings": findings(partition),
        "gaps": [asdict(gap) for gap in gaps],
        "ten_minutes": [
            {"from": _moment(begin), "records": count, "checksum": f"{total:016x}"}
            for begin, (count, total) in sorted(partition.buckets.items())
        ],
        "table": [
            {
                "start": c.start, "end": c.end, "log_rows": c.log_rows, "table_rows": c.table_rows,
                "missing": c.missing, "extra": c.extra, "different": c.different, "twice": c.twice, "offsets": c.shown,
            }
            for c in partition.comparisons
        ],
    }  # fmt: skip


def make_report_directory(directory: str) -> None:
    """The directory of a report, made if missing. Raises BadRequestError where it cannot be written."""
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise BadRequestError(f"--report {directory}: {error.strerror}; expected a directory to write to") from error
    if not os.access(directory, os.W_OK):
        raise BadRequestError(f"--report {directory}: expected a directory that can be written")


def write_report(result: AuditResult, directory: str) -> list[str]:
    """Write the report's files; returns their paths. Raises OSError."""
    os.makedirs(directory, exist_ok=True)
    pictures = draw(result, directory)
    texts = {
        "report.json": json.dumps(as_json(result), indent=1) + "\n",
        "report.md": as_markdown(result, pictures),
        "report.html": as_html(result, directory, pictures),
    }
    for name, text in texts.items():
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            file.write(text)
    return [os.path.join(directory, name) for name in (*texts, *pictures)]


# ---- text


def _rows(result: AuditResult) -> list[tuple[str, ...]]:
    names = [name for name in LABELS if name != "bytes_read"]
    header = ("partition", "offsets", *(LABELS[name] for name in names), "in order")
    body = [
        (
            partition.name,
            f"{partition.start} to {partition.end - 1}" if partition.end > partition.start else "none",
            *(f"{partition.total(name):,}" for name in names),
            "no" if partition.is_wrong else "yes",
        )
        for partition in result.partitions
    ]
    return [header, *body]


def _bucket_rows(partition: PartitionAudit) -> list[tuple[str, ...]]:
    body = [
        (_moment(begin), f"{count:,}", f"{total:016x}") for begin, (count, total) in sorted(partition.buckets.items())
    ]
    return [("ten minutes from", "records", "checksum"), *body]


def as_markdown(result: AuditResult, pictures: list[str]) -> str:
    """The report as Markdown; pictures are linked."""
    lines = [f"# Audit of {_moment(result.created_ms)}", "", summary(result)[-1].capitalize() + ".", ""]
    lines += [*_markdown_table(_rows(result)), ""]
    lines += [line for name in pictures for line in (f"![{name}]({name})", "")]
    if not pictures:
        lines += ["No pictures: matplotlib is not installed (pip install matplotlib).", ""]
    for partition in result.partitions:
        lines += [f"## {partition.name}", ""]
        faults = findings(partition)
        lines += [f"- {fault}" for fault in faults] or ["Nothing is wrong."]
        lines.append("")
        if partition.comparisons:
            equal = sum(comparison.is_equal for comparison in partition.comparisons)
            lines += [f"Table: {equal} of {len(partition.comparisons)} ranges are equal to the log.", ""]
        if partition.buckets:
            lines += [*_markdown_table(_bucket_rows(partition)), ""]
    return "\n".join(lines)


def _markdown_table(rows: list[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


def as_html(result: AuditResult, directory: str, pictures: list[str]) -> str:
    """The report as one page, pictures inside."""
    title = f"Audit of {_moment(result.created_ms)}"
    parts = [f"<h1>{title}</h1><p>{html.escape(summary(result)[-1].capitalize())}.</p>", _html_table(_rows(result))]
    for name in pictures:
        with open(os.path.join(directory, name), "rb") as file:
            data = base64.b64encode(file.read()).decode()
        parts.append(f'<p><img alt="{name}" src="data:image/png;base64,{data}"></p>')
    for partition in result.partitions:
        parts.append(f"<h2>{html.escape(partition.name)}</h2>")
        faults = "".join(f"<li>{html.escape(fault)}</li>" for fault in findings(partition))
        parts.append(f"<ul>{faults}</ul>" if faults else "<p>Nothing is wrong.</p>")
        if partition.buckets:
            parts.append(_html_table(_bucket_rows(partition)))
    style = "body{font-family:sans-serif;margin:2em}td,th{padding:.2em .6em;text-align:right}img{max-width:100%}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{style}</style>'
        f"</head><body>{''.join(parts)}</body></html>\n"
    )


def _html_table(rows: list[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f"<table><tr>{head}</tr>{body}</table>"


def _moment(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError):
        return f"{milliseconds} ms"


# ---- pictures


def draw(result: AuditResult, directory: str) -> list[str]:
    """Draw the pictures; their names, none without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    for name, paint in zip(PICTURES, (_timeline, _offsets), strict=True):
        figure = Figure(figsize=(10, 4), layout="constrained")
        FigureCanvasAgg(figure)
        paint(figure.add_subplot(), result)
        figure.savefig(os.path.join(directory, name), dpi=100)
    return list(PICTURES)


def _timeline(axes: Any, result: AuditResult) -> None:
    topics: dict[str, dict[int, int]] = {}
    for partition in result.partitions:
        counts = topics.setdefault(partition.topic, {})
        for begin, (count, _) in partition.buckets.items():
            counts[begin] = counts.get(begin, 0) + count
    for topic, counts in sorted(topics.items()):
        begins = [begin for begin in sorted(counts) if abs(begin) < 250_000_000_000_000]
        times = [datetime.fromtimestamp(begin / 1000, UTC) for begin in begins]
        axes.plot(times, [counts[begin] for begin in begins], marker=".", label=topic)
    axes.set(title="Committed records per ten minutes", ylabel="records", ylim=(0, None))
    if topics:
        axes.legend()
    axes.figure.autofmt_xdate()


def _offsets(axes: Any, result: AuditResult) -> None:
    colours = {"there": "tab:blue", "compacted": "tab:orange", "lost": "tab:red"}
    for row, partition in enumerate(result.partitions):
        axes.barh(row, partition.end - partition.start, left=partition.start, color=colours["there"])
        for gap in [gap for segment in partition.segments for gap in segment.gaps] + partition.gaps:
            axes.barh(row, gap.end - gap.start, left=gap.start, color=colours[gap.kind])
        for segment in partition.segments:
            axes.plot([segment.base_offset] * 2, [row - 0.4, row + 0.4], color="white", linewidth=1)
    axes.set(title="Offsets by partition; white lines begin segments", xlabel="offset")
    axes.set_yticks(range(len(result.partitions)), [partition.name for partition in result.partitions])
    axes.legend(handles=[_patch(kind, colour) for kind, colour in colours.items()])


def _patch(label: str, colour: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour, label=label)
