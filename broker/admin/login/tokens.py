"""Bearer tokens of the admin interface: a file that holds their digests, users, scopes and expiry times.

    SHA-256 of the token, hexadecimal   user   read|write   seconds since 1970

One token per line; words are separated by spaces, ``#`` begins a comment. The user is percent-encoded. The token itself
is 32 random bytes, known only to its bearer. The file is read again when it has changed. That may wait for the disk, so
a token is never looked up on the loop.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from typing import NamedTuple
from urllib.parse import quote, unquote

TOKEN_BYTES = 32
READ, WRITE = "read", "write"
MAX_FILE_BYTES = 1 << 20
_EXPIRY_TIME = re.compile(r"[0-9]{1,18}")
_Stamp = tuple[int, int, int]
"""Modification time in nanoseconds, size and inode number of the file."""


class Token(NamedTuple):
    """User, scope and expiry time of one token."""

    user: str
    may_write: bool
    expires_s: int


class TokenFile:
    """The tokens of one file. Used by one thread at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp: _Stamp | None = None
        self._tokens: dict[str, Token] = {}

    def find(self, token: str, now_s: float) -> Token | None:
        """Find a token, if it is valid now. It is looked up by digest, so the time of the look-up reveals nothing about
        it. Raises OSError.
        """
        self._refresh()
        found = self._tokens.get(digest_of(token))
        return found if found is not None and now_s < found.expires_s else None

    def _refresh(self) -> None:
        status = os.stat(self._path)
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp != self._stamp:
            with open(self._path, encoding="utf-8", errors="replace") as file:
                self._tokens = parse_tokens(file.read(MAX_FILE_BYTES))
            self._stamp = stamp


def parse_tokens(text: str) -> dict[str, Token]:
    """Parse the file's lines into tokens by digest. Malformed lines are ignored."""
    tokens = {}
    for line in text.splitlines():
        words = _words_of(line)
        if _is_token(words):
            tokens[words[0].lower()] = Token(unquote(words[1]), words[2] == WRITE, int(words[3]))
    return tokens


def is_token_file(content: bytes) -> bool:
    """Return whether all lines of a file are tokens, comments or empty."""
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        return False
    return all(not words or _is_token(words) for words in map(_words_of, lines))


def _words_of(line: str) -> list[str]:
    return line.partition("#")[0].split()


def _is_token(words: list[str]) -> bool:
    return len(words) == 4 and words[2] in (READ, WRITE) and _EXPIRY_TIME.fullmatch(words[3]) is not None


def make_token(user: str, *, may_write: bool, expires_s: int) -> tuple[str, str]:
    """Make a new token. Returns the token, and the line for it in the file."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    return token, f"{digest_of(token)} {quote(user, safe='')} {WRITE if may_write else READ} {expires_s}\n"


def digest_of(token: str) -> str:
    """Compute the digest of a token, as it is in the file."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
