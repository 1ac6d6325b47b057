"""A stand-in for an object of a compiled class, whose methods a test cannot replace."""

from __future__ import annotations

from typing import Any


class StandIn:
    """An object with the attributes of ``real``, except for those given as ``attributes``."""

    def __init__(self, real: object, **attributes: object) -> None:
        self.__dict__["_real"] = real
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__dict__["_real"], name, value)
