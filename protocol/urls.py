"""URLs in log lines and error texts, without the parts that may hold a password or a key: the login and the query."""

from __future__ import annotations

from urllib.parse import urlsplit

HIDDEN = "[hidden]"


def write_url(url: str) -> str:
    """Return scheme, host, port and path of a URL; HIDDEN if its parts are not certain, as with ``?`` in a password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return HIDDEN
    host = parts.netloc.rpartition("@")[2]
    if "@" in f"{parts.path}?{parts.query}#{parts.fragment}":
        return HIDDEN
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme else f"{host}{parts.path}"


def has_login(url: str) -> bool:
    """Return whether a URL names a user or a password. Raises ValueError for one that cannot be parsed."""
    return "@" in urlsplit(url).netloc
