"""Stand-in for Cython's own module ``cython`` where it is not installed: what compiled modules name, uncompiled."""

from __future__ import annotations

from contextlib import nullcontext

compiled = False
"""Whether the module that asks is compiled. Cython answers itself, with True."""

nogil: nullcontext[None] = nullcontext()
"""The interpreter lock is released within; uncompiled it stays."""
