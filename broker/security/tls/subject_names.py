"""Subjects of certificates, as Java writes them by RFC 2253: ACLs and mapping rules are written for these names.

Python's description of a certificate lacks the types of values, so the subject is read from the DER form. Source:
sun.security.x509.AVA (toRFC2253String).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

_SEQUENCE, _SET, _VERSION, _EXTENSIONS = 0x30, 0x31, 0xA0, 0xA3
_UTC_TIME = 0x17
_ALTERNATIVE_NAMES = "2.5.29.17"
_TEXT_TAGS = frozenset({12, 19, 20, 22, 27, 30})
"""UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString: written as text, others in hex."""
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ESCAPED = frozenset(',=+<>#;"\\')
_BLANKS = " \r"


class MalformedCertificateError(ValueError):
    """Malformed bytes in place of a certificate or revocation list."""


def subject_of(certificate: bytes) -> str:
    """Write the subject of a certificate in DER form, by RFC 2253. Raises MalformedCertificateError."""
    try:
        return ",".join(reversed([_write_part(part) for part in _subject_parts(certificate)]))
    except (IndexError, ValueError) as error:
        raise MalformedCertificateError("the certificate cannot be read") from error


def host_names_of(certificate: bytes) -> frozenset[tuple[int, bytes]]:
    """Read the alternative names of a certificate, each as its kind and bytes. Raises MalformedCertificateError."""
    try:
        for tag, extensions in _fields(certificate):
            if tag == _EXTENSIONS:
                return frozenset(_alternative_names(_element(extensions)[1]))
    except (IndexError, ValueError) as error:
        raise MalformedCertificateError("the certificate cannot be read") from error
    return frozenset()


def expiry_of(certificate: bytes) -> float:
    """Read the end of a certificate's validity, in seconds since 1970. Raises MalformedCertificateError."""
    try:
        _, (tag, end, _) = _elements(_fields(certificate)[3][1])
        text = bytes(end).decode("ascii")
        if tag == _UTC_TIME:  # years of two digits, from 1950 on
            text = ("19" if text >= "50" else "20") + text
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except (IndexError, ValueError) as error:
        raise MalformedCertificateError("the certificate cannot be read") from error


def issuer_of(certificate: bytes) -> bytes:
    """Read the issuer of a certificate, in DER form. Raises MalformedCertificateError."""
    try:
        return bytes(_fields(certificate)[2][1])  # it follows serial number and signature algorithm
    except (IndexError, ValueError) as error:
        raise MalformedCertificateError("the certificate cannot be read") from error


def issuer_of_list(revocation_list: bytes) -> bytes:
    """Read the issuer of a revocation list (CRL), in DER form. Raises MalformedCertificateError."""
    try:
        _, whole, _ = _element(memoryview(revocation_list))
        _, signed, _ = _element(whole)
        # first comes a version, which may be missing, then the signature algorithm, then the issuer
        return bytes([content for tag, content, _ in _elements(signed) if tag == _SEQUENCE][1])
    except (IndexError, ValueError) as error:
        raise MalformedCertificateError("the revocation list cannot be read") from error


def _alternative_names(extensions: memoryview) -> Iterator[tuple[int, bytes]]:
    for _, extension, _ in _elements(extensions):
        parts = [content for _, content, _ in _elements(extension)]
        if parts and _read_object_id(parts[0]) == _ALTERNATIVE_NAMES:
            for tag, name, _ in _elements(_element(parts[-1])[1]):
                yield tag, bytes(name)


def _fields(certificate: bytes) -> list[tuple[int, memoryview]]:
    """Read tag and content of the signed fields, from the serial number on."""
    _, whole, _ = _element(memoryview(certificate))
    _, signed, _ = _element(whole)
    fields = [(tag, content) for tag, content, _ in _elements(signed)]
    return fields[1:] if fields[0][0] == _VERSION else fields


def _subject_parts(certificate: bytes) -> list[memoryview]:
    """Read the parts (RelativeDistinguishedNames) of the subject, in their order."""
    fields = _fields(certificate)
    # the fields are serial number, signature algorithm, issuer, validity, subject
    tag, subject = fields[4]
    parts = list(_elements(subject))
    if tag != _SEQUENCE or any(tag != _SET for tag, _, _ in parts):
        raise MalformedCertificateError("the certificate has no subject")
    return [content for _, content, _ in parts]


def _write_part(part: memoryview) -> str:
    return "+".join(_write_attribute(attribute) for _, attribute, _ in _elements(part))


def _write_attribute(attribute: memoryview) -> str:
    (_, object_id, _), (tag, content, value) = _elements(attribute)
    name = _read_object_id(object_id)
    keyword = _KEYWORDS.get(name)
    if keyword is None or tag not in _TEXT_TAGS:
        return f"{keyword or name}=#{value.hex()}"
    return f"{keyword}={escape_value(bytes(content).decode(errors='replace'))}"


def escape_value(text: str) -> str:
    """Escape a value's special characters, and its blanks at both ends."""
    escaped = "".join("\\00" if c == "\0" else "\\" + c if c in _ESCAPED else c for c in text)
    first = len(escaped) - len(escaped.lstrip(_BLANKS))
    last = len(escaped.rstrip(_BLANKS)) - 1
    return "".join("\\" + c if i < first or i > last else c for i, c in enumerate(escaped))


def _read_object_id(content: memoryview) -> str:
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _elements(content: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield the tag, the content and all bytes of each element in ``content``."""
    while content:
        tag, inner, size = _element(content)
        yield tag, inner, content[:size]
        content = content[size:]


def _element(data: memoryview) -> tuple[int, memoryview, int]:
    """Return tag, content and size (with tag and length) of the first element. Raises IndexError,
    MalformedCertificateError."""
    tag, length, start = data[0], data[1], 2
    if length & 0x80:
        count = length & 0x7F
        length, start = int.from_bytes(data[2 : 2 + count], "big"), 2 + count
    if len(data) < start + length:
        raise MalformedCertificateError("the certificate is cut short")
    return tag, data[start : start + length], start + length
