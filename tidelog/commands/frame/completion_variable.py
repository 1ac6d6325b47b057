"""Environment variable by which a shell asks for completions. The entry point imports this module at each start, so
click is not imported here."""

from __future__ import annotations

COMPLETION_VARIABLE = "_TIDELOG_COMPLETE"
