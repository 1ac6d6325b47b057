"""Environment variable by which a shell asks for completions. The entry point reads it at each start, without click."""

from __future__ import annotations

COMPLETION_VARIABLE = "_TIDELOG_COMPLETE"
