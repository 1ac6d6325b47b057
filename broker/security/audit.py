"""The audit log: a line of JSON for each login, failure, re-authentication and change, by the logger ``tidelog.audit``.

A line never holds a secret. Names that are not authenticated are cut and escaped, so that no client can forge a line.
"""

from __future__ import annotations

import json
import logging

logger = logging.getLogger("tidelog.audit")

NAME_LENGTH = 64


def record(event: str, reason: str | None = None, /, **facts: object) -> None:
    """Write one line, as a warning if there is a reason, which a failure has. Long texts are cut."""
    level = logging.INFO if reason is None else logging.WARNING
    if not logger.isEnabledFor(level):
        return
    cut = {name: fact[:NAME_LENGTH] if isinstance(fact, str) else fact for name, fact in facts.items()}
    logger.log(level, "%s", json.dumps({"event": event, **cut} | ({} if reason is None else {"reason": reason})))


def record_change(event: str, /, **facts: object) -> None:
    """Write one line about a change that a client was allowed to make. Names stay whole: long ones may differ at their
    end."""
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", json.dumps({"event": event, **facts}))
