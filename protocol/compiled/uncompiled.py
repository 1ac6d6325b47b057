"""Stand-in for Cython's module ``cython`` where it is not installed: the names of it that uncompiled modules use."""

from __future__ import annotations

from contextlib import nullcontext

compiled = False
"""Whether the importing module is compiled; in compiled modules Cython replaces it by True."""

nogil: nullcontext[None] = nullcontext()
"""Context in which compiled code releases the interpreter lock; here it does nothing."""
