"""Subjects of certificates as Java writes them, because ACLs and mapping rules of Apache Kafka are written for
these."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.support.requirements import require_tool
from tidelog.broker.security.tls.subject_names import subject_of

pytestmark = pytest.mark.java

PROGRAM = Path(__file__).parent / "java" / "SubjectNames.java"
COUNT = 300
KINDS = ("2.5.4.3", "2.5.4.6", "2.5.4.7", "2.5.4.8", "2.5.4.9", "2.5.4.10", "2.5.4.11", "2.5.4.5",
         "1.2.840.113549.1.9.1", "0.9.2342.19200300.100.1.1", "0.9.2342.19200300.100.1.25",
         "1.3.6.1.4.1.99999.1")  # fmt: skip
UTF8, PRINTABLE, IA5, OCTETS = 12, 19, 22, 4
LETTERS = "aB3 ,=+<>#;\"\\.-'/äΩ語\t"


def der(tag: int, content: bytes) -> bytes:
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([0x82, size >> 8, size & 255])
    return bytes([tag]) + length + content


def object_id(text: str) -> bytes:
    numbers = [int(number) for number in text.split(".")]
    encoded = b""
    for number in (40 * numbers[0] + numbers[1], *numbers[2:]):
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.insert(0, number & 0x7F | 0x80)
        encoded += bytes(groups)
    return der(6, encoded)


def random_name(rng: random.Random) -> bytes:
    """Build a Name in DER form: parts of one or more attributes, values of several types."""
    parts = b""
    for _ in range(rng.randrange(1, 6)):
        attributes = set()
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            text = "".join(rng.choice(LETTERS) for _ in range(rng.randrange(0, 12)))
            tag = rng.choice([UTF8, UTF8, UTF8, PRINTABLE, IA5, OCTETS])
            value = text.encode() if tag in (UTF8, OCTETS) else text.encode("ascii", "ignore")
            attributes.add(der(0x30, object_id(rng.choice(KINDS)) + der(tag, value)))
        parts += der(0x31, b"".join(sorted(attributes)))
    return der(0x30, parts)


def certificate_of(name: bytes) -> bytes:
    """Build a certificate with nothing but a subject."""
    nothing = der(0x30, b"")
    signed = der(0xA0, der(2, b"\2")) + der(2, b"\1") + nothing + nothing + nothing + name + nothing
    return der(0x30, der(0x30, signed) + nothing + der(3, b"\0"))


def test_subjects_are_written_as_java_writes_them() -> None:
    java = require_tool("java", "apt-get install openjdk-17-jdk-headless")
    rng = random.Random(2253)
    names = [random_name(rng) for _ in range(COUNT)]
    lines = "".join(f"{name.hex()}\n" for name in names)
    done = subprocess.run([java, str(PROGRAM)], input=lines, capture_output=True, text=True, check=True, timeout=120)
    expected = [bytes.fromhex(line).decode() for line in done.stdout.split("\n")[:-1]]
    assert [subject_of(certificate_of(name)) for name in names] == expected
