"""kafka-python, imported with its own warnings kept to itself: it reads its schemas by a deprecated call."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    import kafka.errors

__all__ = ["kafka"]
