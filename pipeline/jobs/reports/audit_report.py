"""The report of an audit: lines for a terminal, and report.md, report.html, report.json with pictures.

    DIR/report.json       all results, for programs
    DIR/report.md         the report as Markdown, with links to the pictures
    DIR/report.html       the report as one page with its pictures inside
    DIR/timeline.png      records per ten minutes, a diagram per topic
    DIR/offsets.png       each partition's offsets: present, compacted, lost

An audit keeps a limited number of findings and gaps of each segment and counts the others (``audit.segment``): reports
say how many they do not list. Pictures need matplotlib; without it the report has none and says so.
"""

from __future__ import annotations

import base64
import html
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from tidelog.pipeline.audit.table import Comparison
from tidelog.pipeline.audit.unrecorded import UnrecordedRows
from tidelog.pipeline.engine.reference import CHECKSUM_VERSION
from tidelog.pipeline.files.storage import require_mounted
from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.jobs.audit import SUMMED, AuditResult, PartitionAudit
from tidelog.pipeline.jobs.reports.audit_pictures import draw

SHOWN_FINDINGS = 20
"""Largest number of findings of a partition that the terminal shows; the files have all that the audit kept."""
SHOWN_BUCKETS = 1008
"""Largest number of rows of ten minutes that report.md and report.html show of a partition: those of a week in which
records came all the time. report.json has all."""
NO_PICTURES = "No pictures: matplotlib is not installed (pip install matplotlib)"
_WRONG = ' class="wrong"'
_STYLE = (
    "body{font-family:sans-serif;margin:2em;color:#222}table{border-collapse:collapse}"
    "td,th{padding:.25em .7em;text-align:right;border-bottom:1px solid #ddd}th{vertical-align:bottom;font-weight:600}"
    "td{white-space:nowrap}td:first-child,th:first-child{text-align:left}.wrong{color:#b00;font-weight:600}img{max-width:100%}"
)
LABELS = {
    "bytes_read": "bytes",
    "batches": "batches",
    "records": "committed records",
    "control_batches": "transaction markers",
    "aborted_records": "aborted records",
    "open_records": "records of open transactions",
    "compacted_offsets": "offsets compacted away",
    "lost_offsets": "offsets lost",
    "damaged_offsets": "offsets damaged",
    "corrupt_batches": "corrupt batches",
    "unreadable_bytes": "unreadable bytes",
    "duplicate_batches": "duplicate batches",
    "index_entries": "index entries checked",
    "index_faults": "index entries wrong",
}
#: Kind of a gap that is a fault -> the text in reports.
LOSSES = {"lost": "lost", "damaged": "lost to damage"}


def summary(result: AuditResult) -> list[str]:
    """Build the lines for a terminal: totals, then the first findings of each partition."""
    rate = result.total("bytes_read") / max(result.seconds, 1e-6) / 1e9
    lines = [f"audited {len(result.partitions)} partitions, {result.total('bytes_read'):,} bytes, {rate:.2f} GB/s"]
    lines += [f"  {LABELS[name]}: {result.total(name):,}" for name in LABELS if name != "bytes_read"]
    for partition in result.partitions:
        faults = findings(partition)
        lines += [f"{partition.name}: {fault}" for fault in faults[:SHOWN_FINDINGS]]
        more = max(0, len(faults) - SHOWN_FINDINGS) + count_unlisted(partition)
        if more:
            lines.append(f"{partition.name}: and {more:,} more")
    if result.table is not None:
        lines.append(f"table {result.table}: {agreement(c for p in result.partitions for c in p.comparisons)}")
    lines += foreign_content(result)
    lines.append("something is wrong" if result.is_wrong else "everything is in order")
    return lines


def foreign_content(result: AuditResult) -> list[str]:
    """Build the lines about a table's foreign content: files that no export wrote, rows that none recorded, and what
    could not be searched."""
    files = [f"{path}: a foreign file, whose rows a reader of the table gets too" for path in result.foreign]
    unread = [f"not searched for foreign rows: {source} cannot be read: {reason}" for source, reason in result.unread]
    return [*files, *map(_foreign_rows, result.unrecorded), *unread]


def _foreign_rows(found: UnrecordedRows) -> str:
    shown = ", ".join(map(str, found.offsets)) or "none"
    more = ", ..." if found.rows > len(found.offsets) > 0 else ""
    partition = (
        f"{'no topic' if found.topic is None else found.topic}-{'none' if found.partition is None else found.partition}"
    )
    return f"the table has rows of {partition} that no export recorded: {found.rows:,} (offsets {shown}{more})"


def findings(partition: PartitionAudit) -> list[str]:
    """List the faults of a partition that the audit kept, one line each; ``count_unlisted`` counts the others."""
    lines = [str(finding) for segment in partition.segments for finding in segment.findings]
    lines += [str(finding) for finding in partition.findings]
    gaps = [gap for segment in partition.segments for gap in segment.gaps] + partition.gaps
    lines += [f"offsets {gap.start} to {gap.end - 1} are {LOSSES[gap.kind]}" for gap in gaps if gap.kind in LOSSES]
    for kind, text in LOSSES.items():
        listed = sum(gap.end - gap.start for gap in gaps if gap.kind == kind)
        if partition.total(f"{kind}_offsets") > listed:
            lines.append(f"{partition.total(f'{kind}_offsets') - listed:,} more offsets are {text}, in unlisted gaps")
    for comparison in partition.comparisons:
        if not partition.accepts(comparison):
            lines.append(difference(comparison))
    return lines


def count_unlisted(partition: PartitionAudit) -> int:
    """Count the findings that the audits of the partition's segments counted and did not keep."""
    return sum(segment.finding_count - len(segment.findings) for segment in partition.segments)


def _list_for_page(partition: PartitionAudit) -> list[str]:
    """List the faults for a page, and how many more there are."""
    more = count_unlisted(partition)
    return findings(partition) + ([f"and {more:,} more, which were only counted"] if more else [])


def agreement(comparisons: Iterable[Comparison]) -> str:
    """Build a line that says how many ranges of a table are equal to the log."""
    compared = list(comparisons)
    equal = sum(comparison.is_equal for comparison in compared)
    rows = sum(comparison.table_rows for comparison in compared)
    return f"{equal} of {len(compared)} ranges of offsets are equal to the log, {rows:,} rows"


def difference(comparison: Comparison) -> str:
    """Build a line that says how table and log differ in one range, or why it is not compared."""
    if comparison.unreadable:
        return f"offsets {comparison.start} to {comparison.end - 1} are not compared: {comparison.unreadable}"
    kinds = [
        f"{getattr(comparison, kind)} {kind} (offsets {', '.join(map(str, offsets))}"
        f"{', ...' if getattr(comparison, kind) > len(offsets) else ''})"
        for kind, offsets in comparison.shown.items()
    ]
    return f"the table differs in offsets {comparison.start} to {comparison.end - 1}: {'; '.join(kinds)}"


def as_json(result: AuditResult) -> dict[str, Any]:
    """Convert the result to JSON values. Checksums are in hex."""
    return {
        "format": "tidelog-audit 2",
        "checksum": f"tidelog-record-hash {CHECKSUM_VERSION}",
        "created": _moment(result.created_ms),
        "seconds": round(result.seconds, 3),
        "table": result.table,
        "in_order": not result.is_wrong,
        "foreign_files": list(result.foreign),
        "unrecorded_rows": [asdict(rows) | {"offsets": list(rows.offsets)} for rows in result.unrecorded],
        "unread": [{"place": place, "reason": reason} for place, reason in result.unread],
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
        "unlisted_findings": count_unlisted(partition),
        "gaps": [asdict(gap) for gap in gaps],
        "ten_minutes": [
            {"from": _moment(begin), "records": count, "checksum": f"{total:016x}"}
            for begin, (count, total) in sorted(partition.buckets.items())
        ],
        "table": [
            {
                "start": c.start, "end": c.end, "log_rows": c.log_rows, "table_rows": c.table_rows,
                "missing": c.missing, "extra": c.extra, "different": c.different, "twice": c.twice,
                "unreadable": c.unreadable, "offsets": c.shown,
            }
            for c in partition.comparisons
        ],
    }  # fmt: skip


def make_report_directory(directory: str) -> None:
    """Create the directory of a report if it is missing. Raises BadRequestError or OptionError if it cannot be created
    or written to."""
    directory = require_mounted(directory, "--report")
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
    if len(body) > SHOWN_BUCKETS:
        body[SHOWN_BUCKETS:] = [(f"and {len(body) - SHOWN_BUCKETS:,} more in report.json", "", "")]
    return [("ten minutes from", "records", "checksum"), *body]


def _describe(result: AuditResult) -> list[str]:
    """Build the sentences about the whole result: its faults, and how much was read and compared."""
    read = f"{len(result.partitions)} partitions, {result.total('bytes_read'):,} bytes in {result.seconds:.1f} s"
    lines = [f"{summary(result)[-1].capitalize()}.", f"{read}{'' if result.records else '; records were not hashed'}."]
    if result.table is not None:
        compared = agreement(c for p in result.partitions for c in p.comparisons)
        lines.append(f"Table {result.table}: {compared}.")
    return lines + [f"{line}." for line in foreign_content(result)]


def as_markdown(result: AuditResult, pictures: list[str]) -> str:
    """Build the report as Markdown; ``pictures`` are names of files, which are linked."""
    lines = [f"# Audit of {_moment(result.created_ms)}"]
    lines += [line for sentence in _describe(result) for line in ("", sentence)]
    lines += ["", *_markdown_table(_rows(result)), ""]
    lines += [line for name in pictures for line in (f"![{name}]({name})", "")]
    if not pictures:
        lines += [f"{NO_PICTURES}.", ""]
    for partition in result.partitions:
        lines += [f"## {partition.name}", ""]
        lines += [f"- {fault}" for fault in _list_for_page(partition)] or ["Nothing is wrong."]
        lines.append("")
        if partition.comparisons:
            lines += [f"Table: {agreement(partition.comparisons)}.", ""]
        if partition.buckets:
            lines += [*_markdown_table(_bucket_rows(partition)), ""]
    return "\n".join(lines)


def _markdown_table(rows: list[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|---|" + "---:|" * (len(rows[0]) - 1), *lines[1:]]


def as_html(result: AuditResult, directory: str, pictures: list[str]) -> str:
    """Build the report as one page with the ``pictures`` inside, which are files of ``directory``. Raises OSError."""
    title = f"Audit of {_moment(result.created_ms)}"
    parts = [f"<h1>{title}</h1>", *(f"<p>{html.escape(sentence)}</p>" for sentence in _describe(result))]
    parts.append(_html_table(_rows(result)))
    for name in pictures:
        with open(os.path.join(directory, name), "rb") as file:
            data = base64.b64encode(file.read()).decode()
        parts.append(f'<p><img alt="{name}" src="data:image/png;base64,{data}"></p>')
    if not pictures:
        parts.append(f"<p>{NO_PICTURES}.</p>")
    for partition in result.partitions:
        parts += _html_partition(partition)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"</head><body>{''.join(parts)}</body></html>\n"
    )


def _html_partition(partition: PartitionAudit) -> list[str]:
    """Build the HTML of a partition: its faults, and a folded table of its records per ten minutes."""
    parts = [f"<h2>{html.escape(partition.name)}</h2>"]
    faults = "".join(f"<li>{html.escape(fault)}</li>" for fault in _list_for_page(partition))
    parts.append(f'<ul class="wrong">{faults}</ul>' if faults else "<p>Nothing is wrong.</p>")
    if partition.comparisons:
        parts.append(f"<p>Table: {html.escape(agreement(partition.comparisons))}.</p>")
    if partition.buckets:
        heading = "<summary>Records and checksums per ten minutes</summary>"
        parts.append(f"<details>{heading}{_html_table(_bucket_rows(partition))}</details>")
    return parts


def _html_table(rows: list[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in rows[0])
    body = "".join(
        f"<tr{_WRONG if row[-1] == 'no' else ''}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows[1:]
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _moment(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError):
        return f"{milliseconds} ms"
