"""Objects that stand in for others whose class is compiled, and so refuses other methods."""

from __future__ import annotations

from typing import Any


class StandIn:
    """Stand-in with the attributes of ``real``, but for those that are given."""

    def __init__(self, real: object, **attributes: object) -> None:
        self.__dict__["_real"] = real
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__dict__["_real"], name, value)
