"""Types of the arrays that the engines share."""

from __future__ import annotations

from typing import Any

import numpy as np

IntegerArray = np.ndarray[Any, np.dtype[np.int64]]
WordArray = np.ndarray[Any, np.dtype[np.uint64]]
ByteArray = np.ndarray[Any, np.dtype[np.uint8]]
