"""The page of the cleaner and of indices: the state of each compacted partition, and of each index."""

from __future__ import annotations

from tidelog.broker.cleaning import statuses
from tidelog.cleaner.cleaner_manager import PartitionStatus
from tidelog.console.view import MAX_ROWS, Page, View, describable_names, slice_from
from tidelog.log.find.indexer import LogIndexer


def compaction_page(view: View) -> Page:
    """Build the model of the page, without starting the cleaner."""
    wanted = view.text("find")
    cleaner = view.sender.run_in_loop(lambda: view.sender.broker.services.cleaner.made)
    found = (
        [] if cleaner is None else [one for one in statuses(view.sender.broker) if wanted in one.topic_partition.topic]
    )
    rows, following = slice_from(shown_statuses(view, found), view.number("start") or 0)
    indexers = [one for one in indexers_of(view) if wanted in one.log.topic_partition.topic]
    values = {
        "section": "compaction", "is_running": cleaner is not None, "rows": rows, "next": following, "find": wanted,
        "threads": 0 if cleaner is None else cleaner.live_threads, "indexers": indexers[:MAX_ROWS],
        "indexer_count": len(indexers),
    }  # fmt: skip
    return Page("compaction.html", "Cleaner and indices", values)


def shown_statuses(view: View, found: list[PartitionStatus]) -> list[PartitionStatus]:
    """Return the partitions whose topics the caller may describe."""
    allowed = describable_topics(view, {one.topic_partition.topic for one in found})
    return [one for one in found if one.topic_partition.topic in allowed]


def indexers_of(view: View) -> list[LogIndexer]:
    """Return the indexers whose topics the caller may describe, sorted by partition."""
    indexing = view.sender.run_in_loop(lambda: view.sender.broker.services.indexing.made)
    found = [] if indexing is None else indexing.indexers()
    allowed = describable_topics(view, {one.log.topic_partition.topic for one in found})
    return sorted(
        (one for one in found if one.log.topic_partition.topic in allowed), key=lambda one: one.log.topic_partition
    )


def describable_topics(view: View, names: set[str]) -> set[str]:
    """Return the topics among ``names`` that the caller may describe."""
    return set(describable_names(view, iter(names)))
