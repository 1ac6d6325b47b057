from collections.abc import Callable
from typing import Any

parse_to_aware_datetime: Callable[..., Any]
