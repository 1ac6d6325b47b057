"""The audit log: one line of JSON for each login, failure and re-authentication, by the logger ``tidelog.audit``.

A line never holds a secret. Names that are not proved are cut and escaped, so that a client can forge no line.
"""

from __future__ import annotations

import json
import logging

logger = logging.getLogger("tidelog.audit")

NAME_LENGTH = 64


def record(event: str, *, listener: str, address: str, mechanism: str, user: str, reason: str | None = None) -> None:
    """Write one line; a failure as a warning."""
    level = logging.INFO if reason is None else logging.WARNING
    if not logger.isEnabledFor(level):
        return
    entry = {"event": event, "listener": listener, "address": address, "mechanism": mechanism[:NAME_LENGTH],
             "user": user[:NAME_LENGTH]}  # fmt: skip
    if reason is not None:
        entry["reason"] = reason
    logger.log(level, "%s", json.dumps(entry))
