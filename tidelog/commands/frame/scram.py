"""Arguments of ``--add-scram``: ``SCRAM-SHA-512=[name=admin,password=secret]``, in the grammar of Kafka's ScramParser.

    name            the user
    password        the password
    password-file   in place of password: a file whose first line is the password; this key is Tidelog's own
    saltedpassword  in place of password: base64, needs salt
    salt            base64; random unless given
    iterations      4,096 to 16,384; 4,096 unless given

Components are separated by commas, so a value cannot have a comma, even in quotes; only a password in a file can.
Messages repeat no value but the path of a password file: other values may be a password or a part of one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from typing import NamedTuple

from tidelog.broker.controller.clients.scram_credentials import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramMechanism,
    credential_record,
    derive,
)
from tidelog.broker.metadata.image_records import VersionedRecord

_MECHANISMS = {mechanism.name.replace("_", "-"): mechanism for mechanism in ScramMechanism}
_KEYS = {"name", "password", "password-file", "saltedpassword", "salt", "iterations"}
_SALT_BYTES = 24


class ScramArgumentError(Exception):
    """The argument is not a valid credential."""


class FirstUser(NamedTuple):
    """A user, the name of the mechanism, and the metadata record with the credential."""

    name: str
    mechanism: str
    record: VersionedRecord


def parse_first_user(argument: str) -> FirstUser:
    """Parse the user of an argument and hash the password. Raises ScramArgumentError."""
    mechanism_name, texts = _parse_argument(argument.strip())
    mechanism = _MECHANISMS[mechanism_name]
    name = texts.get("name", "")
    if not name:
        raise ScramArgumentError("it needs a name")
    iterations = _iterations_of(texts)
    salt, salted = _salted_password(texts, mechanism, iterations)
    record = credential_record(name, mechanism, derive(mechanism, iterations, salt, salted))
    return FirstUser(name, mechanism_name, record)


def _parse_argument(argument: str) -> tuple[str, dict[str, str]]:
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise ScramArgumentError("it is not UTF-8") from None
    mechanism, equals, listed = argument.partition("=")
    if not equals or mechanism not in _MECHANISMS:
        raise ScramArgumentError(f"expected {' or '.join(f'{name}=[...]' for name in _MECHANISMS)}")
    if not (listed.startswith("[") and listed.endswith("]") and len(listed) > 1):
        raise ScramArgumentError(f"expected [ and ] around what follows {mechanism}=")
    texts = dict(_parse_component(text) for text in _components_of(listed[1:-1]))
    if texts.keys() - _KEYS:  # not named: after a comma in the password it is a part of the password
        raise ScramArgumentError(
            f"a key is unknown, expected {', '.join(sorted(_KEYS))}; for a password with a comma use password-file"
        )
    return mechanism, texts


def _components_of(listed: str) -> list[str]:
    """Return the components, without empty ones at the end, as Java's ``split`` does."""
    return listed.rstrip(",").split(",")


def _parse_component(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ScramArgumentError("a component has no equals sign; for a password with a comma use password-file")
    quoted = len(value) >= 2 and value.startswith('"') and value.endswith('"')
    return key, value[1:-1] if quoted else value


def _iterations_of(texts: dict[str, str]) -> int:
    text = texts.get("iterations", str(MIN_ITERATIONS))
    if not re.fullmatch(r"\+?[0-9]{1,10}", text) or not MIN_ITERATIONS <= int(text) <= MAX_ITERATIONS:
        raise ScramArgumentError(f"expected iterations from {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    return int(text)


def _salted_password(texts: dict[str, str], mechanism: ScramMechanism, iterations: int) -> tuple[bytes, bytes]:
    """Return the salt and the salted password; a plain password overrides ``saltedpassword``, as in Kafka."""
    salt = _decode("salt", texts["salt"]) if "salt" in texts else os.urandom(_SALT_BYTES)
    password = _password_of(texts)
    if password is not None:
        return salt, hashlib.pbkdf2_hmac(mechanism.hash_name, password, salt, iterations)
    if "salt" not in texts:
        raise ScramArgumentError("saltedpassword needs its salt")
    salted, size = _decode("saltedpassword", texts["saltedpassword"]), hashlib.new(mechanism.hash_name).digest_size
    if len(salted) != size:
        raise ScramArgumentError(f"the saltedpassword has {len(salted)} bytes, expected {size}")
    return salt, salted


def _password_of(texts: dict[str, str]) -> bytes | None:
    """Return the password's bytes, None if only a salted one is given."""
    if "password" in texts and "password-file" in texts:
        raise ScramArgumentError("expected password or password-file, not both")
    if "password-file" in texts:
        password = _read_first_line(texts["password-file"])
    elif "password" in texts:
        password = texts["password"].encode()
    elif "saltedpassword" in texts:
        return None
    else:
        raise ScramArgumentError("it needs a password, password-file or saltedpassword")
    if not password:
        raise ScramArgumentError("the password is empty")
    return password


def _read_first_line(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            line = file.readline().rstrip(b"\r\n")
        line.decode()
    except OSError as error:
        raise ScramArgumentError(f"the password file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ScramArgumentError(f"the password file {path} is not UTF-8") from None
    return line


def _decode(key: str, text: str) -> bytes:
    """Decode base64, with or without padding, as Java's decoder does. Raises ScramArgumentError."""
    padded = text if "=" in text else text + "=" * (-len(text) % 4)
    try:
        decoded = base64.b64decode(padded, validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    if not decoded:
        raise ScramArgumentError(f"expected base64 as {key}")
    return decoded
