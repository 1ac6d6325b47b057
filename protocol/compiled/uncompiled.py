"""Stand-in for Cython's module ``cython`` if that is not installed: the names that uncompiled modules use of it."""

from __future__ import annotations

from contextlib import nullcontext

compiled = False
"""Whether the importing module is compiled; in compiled modules Cython replaces it by True."""

nogil: nullcontext[None] = nullcontext()
"""Context in which compiled code releases the interpreter lock; here it does nothing."""
