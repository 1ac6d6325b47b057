"""Kernels of the cleaner by name, from all modules, as numba compiles them."""

from __future__ import annotations

from typing import Any

from tidelog.cleaner.engine import kernels, lz4_kernels, map_kernels, transaction_kernels
from tidelog.cleaner.engine.kernel_group import CLEANER

KERNELS: dict[str, Any] = {
    name: getattr(module, name)
    for module in (kernels, map_kernels, transaction_kernels, lz4_kernels)
    for name in CLEANER.signatures
    if hasattr(module, name)
}
