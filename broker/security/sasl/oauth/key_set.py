"""The issuer's keys (JWKS): read from their URL in a thread, and read again from time to time.

    keys read               -> the next read after ``refresh_s``
    read failed             -> the old keys stay; the next read after ``backoff_s``, doubled by each further failure
                               up to ``longest_backoff_s``
    token with unknown key  -> the next read at once, but this at most once a minute, and not while reads fail

A URL is https, http on this machine, or a file. No redirect is followed, and no more than MAX_BYTES and MAX_KEYS are
accepted. One deadline holds for the whole read of a URL, except for the look-up of its host. ``keys`` is replaced as a
whole; any thread may read it.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from tidelog.protocol.foreign_text import decode_json
from tidelog.protocol.urls import write_url

if TYPE_CHECKING:
    from http.client import HTTPResponse

logger = logging.getLogger(__name__)

K = TypeVar("K")
MAX_BYTES = 100 * 1024
MAX_KEYS = 64
TIMEOUT_S = 10.0
EARLY_PAUSE_S = 60.0
"""Shortest interval of reads that unknown keys cause, so that tokens with invented key ids cause no more."""
LONGEST_WAIT_S = 86_400.0
"""Longest wait of the thread: a configured interval may be longer than a lock can wait."""


UNFORESEEN = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)
"""Unexpected errors of a read that must not end the thread, or the keys would stay as they are until the next start."""


class MalformedKeysError(Exception):
    """A document that is not a JWKS or cannot be fetched, or a key that cannot be used."""


class Pace(NamedTuple):
    """Intervals between two reads of the keys."""

    refresh_s: float
    backoff_s: float
    longest_backoff_s: float


class KeySet(Generic[K]):
    """The keys of one issuer. Only one thread calls ``run`` and ``step``; any thread may call the other methods."""

    def __init__(
        self,
        fetch: Callable[[], bytes],
        read: Callable[[Mapping[str, Any]], K],
        nothing: K,
        pace: Pace,
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        """``nothing`` is the value of ``keys`` until some are read. ``fetch`` returns a JWKS, and ``read`` reads its
        keys; both raise MalformedKeysError.
        """
        self.keys = nothing
        self._fetch = fetch
        self._read = read
        self._pace = pace
        self._now_s = now_s
        self._due_s = self._early_after_s = float("-inf")
        self._failures = 0
        self._lock = threading.Lock()
        self._stopped = False
        self._wake = threading.Event()

    def note_unknown(self) -> bool:
        """Let the keys be read now, as a token names an unknown key. Return False if they are not read early: within
        EARLY_PAUSE_S after the last early read, or while reads fail.
        """
        with self._lock:
            now = self._now_s()
            if now < self._early_after_s or self._failures:
                return False
            self._early_after_s = now + EARLY_PAUSE_S
            self._due_s = now
        self._wake.set()
        return True

    def step(self) -> float:
        """Read the keys if their time has come; return the seconds until the next read."""
        with self._lock:
            now = self._now_s()
            if now < self._due_s:
                return self._due_s - now
            self._due_s = now + self._pace.refresh_s
        wait_s = self._refresh()
        with self._lock:
            self._due_s = min(self._due_s, self._now_s() + wait_s)
        return wait_s

    def _refresh(self) -> float:
        """Read the keys; return the seconds until the next read."""
        try:
            self.keys = self._read(parse(self._fetch()))
        except MalformedKeysError as error:
            return self._fail(str(error))
        except UNFORESEEN as error:
            return self._fail(repr(error))
        if self._failures:
            logger.info("the keys that verify tokens can be read again")
        self._failures = 0
        return self._pace.refresh_s

    def _fail(self, reason: str) -> float:
        """Note a failed read; return the seconds until the next one."""
        if not self._failures:
            logger.warning("cannot read the keys that verify tokens, trying again later: %s", reason)
        wait_s: float = min(self._pace.backoff_s * 2**self._failures, self._pace.longest_backoff_s)
        self._failures = min(self._failures + 1, 32)
        return wait_s

    def run(self) -> None:
        """Read the keys at intervals, until ``stop``: the body of a thread."""
        while not self._stopped:
            wait_s = self.step()
            self._wake.wait(min(wait_s, LONGEST_WAIT_S))
            self._wake.clear()

    def stop(self) -> None:
        """Let ``run`` return."""
        self._stopped = True
        self._wake.set()


def parse(data: bytes) -> Mapping[str, Any]:
    """Parse a JWKS. Raises MalformedKeysError."""
    try:
        document = decode_json(data)
    except ValueError:
        document = None
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list):
        raise MalformedKeysError("not a JSON object with a list of keys")
    if len(keys) > MAX_KEYS:
        raise MalformedKeysError(f"more than {MAX_KEYS} keys")
    return {"keys": keys}


def fetch_file(path: str) -> bytes:
    """Read the content of a file. Raises MalformedKeysError."""
    try:
        with open(path, "rb") as file:
            return check_size(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise MalformedKeysError(f"{path}: {error.strerror}") from error


def fetch_url(url: str, context: ssl.SSLContext | None, now_s: Callable[[], float] = monotonic) -> bytes:
    """Fetch the body of the answer to a GET request, without following a redirect; call it in a thread. Raises
    MalformedKeysError.
    """
    from http.client import HTTPException  # takes 20 ms, not at the start

    from tidelog.broker.security.timed_http import Deadline, open_connection

    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        deadline = Deadline(TIMEOUT_S, now_s)
        with closing(open_connection(parts.scheme, parts.hostname or "", parts.port, context, deadline)) as connection:
            connection.request("GET", path, headers={"Accept": "application/json", "Connection": "close"})
            with closing(connection.getresponse()) as response:
                if response.status != 200:
                    raise MalformedKeysError(f"{write_url(url)} answered {response.status}")
                return read_body(response)
    except TimeoutError as error:
        raise MalformedKeysError(f"{write_url(url)}: it takes too long") from error
    except (OSError, HTTPException) as error:
        raise MalformedKeysError(f"{write_url(url)}: {type(error).__name__}") from error


def read_body(response: HTTPResponse) -> bytes:
    """Read a body within bounds of size. Raises MalformedKeysError, OSError, HTTPException."""
    body = b""
    while part := response.read1(MAX_BYTES + 1 - len(body)):
        body = check_size(body + part)
    return body


def check_size(data: bytes) -> bytes:
    """Return the bytes. Raises MalformedKeysError if there are too many."""
    if len(data) > MAX_BYTES:
        raise MalformedKeysError(f"more than {MAX_BYTES} bytes")
    return data


def file_of(url: str) -> str | None:
    """Return the path of a file URL; None for any other URL."""
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" and parts.netloc in ("", "localhost") else None
