"""Figures of a run of faults, printed as a line and kept below ``build/cluster-faults``."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence

from benchmarks.rivals.kafka_jars import BUILD
from tests.support.faulty_cluster.history import Findings, History

DIRECTORY = BUILD / "cluster-faults"


def conclude(name: str, mix: str, history: History, findings: Findings, again: Sequence[float], **more: object) -> None:
    """Print the figures of one run, and write them to a file; fail if the history has a fault.

    ``again`` has the seconds without acknowledgements after each fault.
    """
    figures = {
        "run": name,
        "mix": mix,
        "faults": len(again),
        "acknowledged": len(history.acknowledged),
        "aborted": len(history.aborted),
        "read": sum(map(len, history.reads.values())),
        **{kind: len(found) for kind, found in findings._asdict().items()},
        "again_s_p50": round(statistics.median(again), 2) if again else None,
        "again_s_max": round(max(again), 2) if again else None,
        "again_s": [round(one, 1) for one in again],
        "load": round(os.getloadavg()[0], 1),
        **more,
    }
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    (DIRECTORY / f"{name}-{mix}.json").write_text(json.dumps(figures, indent=1) + "\n")
    print("\n" + "  ".join(f"{key} {value}" for key, value in figures.items()))
    assert findings.is_clean, "\n".join(line for found in findings for line in found[:5])
