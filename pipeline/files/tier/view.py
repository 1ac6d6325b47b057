"""Constants of the view of a remote tier, which ``tidelog.pipeline.files.remote`` needs before it opens one."""

from __future__ import annotations

TIER_ROOT = "logs"
"""The directory under which the segments of a remote tier are shown."""
LISTING_S = 1.0
"""How long a listing of a store is used again, in seconds: one plan asks for it several times."""
