"""Parameters of the admin interface's URLs: an unknown name or a malformed value is an error that names it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


def read_parameters(query: Iterable[tuple[str, str]], known: Collection[str]) -> dict[str, str]:
    """Read the parameters by name. Raises ValueError for one that is unknown or given twice."""
    parameters: dict[str, str] = {}
    for name, value in query:
        if name not in known:
            raise ValueError(f"unknown parameter {name!r}; known are: {', '.join(sorted(known)) or 'none'}")
        if name in parameters:
            raise ValueError(f"parameter {name} is given twice")
        parameters[name] = value
    return parameters


def parse_switch(parameters: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Parse a parameter that is true or false. Raises ValueError."""
    text = parameters.get(name)
    if text is None:
        return default
    if text not in ("1", "true", "0", "false"):
        raise ValueError(f"{name} is {text!r}: expected true or false")
    return text in ("1", "true")
