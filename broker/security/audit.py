"""The audit log, by the logger ``tidelog.audit``. Each line is JSON.

    SASL            logins and re-authentications, failed ones too
    HTTP            failed logins, and writes, refused ones too
    changes         those of administrators, and topics that are created because a client names them
    certificates    new ones of listeners

A line never holds a secret. Names that clients give before they are authenticated are cut, and so are reasons, which
may quote them. JSON escapes them, so that no client can forge a line.
"""

from __future__ import annotations

import json
import logging

logger = logging.getLogger("tidelog.audit")

MAX_CHARACTERS = 64
"""Longest text in a field that ``record`` writes; the rest is cut off."""
MAX_REASON_CHARACTERS = 512
"""Longest reason of a failure, which may quote two names."""


def record(event: str, reason: str | None = None, /, **fields: object) -> None:
    """Write one line with these fields; for a failure, which has a reason, as a warning. Texts in fields are cut to
    MAX_CHARACTERS, the reason to MAX_REASON_CHARACTERS.
    """
    level = logging.INFO if reason is None else logging.WARNING
    if not logger.isEnabledFor(level):
        return
    cut = {name: value[:MAX_CHARACTERS] if isinstance(value, str) else value for name, value in fields.items()}
    why = {} if reason is None else {"reason": reason[:MAX_REASON_CHARACTERS]}
    logger.log(level, "%s", json.dumps({"event": event, **cut, **why}))


def record_change(event: str, /, **fields: object) -> None:
    """Write one line about a change that a client was allowed to make. Long texts are not cut: names may differ only at
    their end."""
    if logger.isEnabledFor(logging.INFO):
        record_at_any_level(event, **fields)


def record_at_any_level(event: str, /, **fields: object) -> None:
    """Write the line of a change as ``record_change`` does, even if the level of the audit log lets none through."""
    line = json.dumps({"event": event, **fields})
    logger.handle(logger.makeRecord(logger.name, logging.INFO, __file__, 0, "%s", (line,), None))
