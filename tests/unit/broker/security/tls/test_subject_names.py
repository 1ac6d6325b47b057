"""Subjects by RFC 2253, as Java writes them; the same against Java itself: ``tests/clients/test_tls_names.py``."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tidelog.broker.security.tls.subject_names import MalformedCertificateError, escape_value, subject_of


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def der_of(path: Path) -> bytes:
    text = path.read_text()
    return ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERT") :])


@pytest.mark.parametrize(
    ("subject", "written"),
    [
        ("/CN=ann", "CN=ann"),
        ("/C=DE/O=Tidelog/OU=Lab/CN=ann", "CN=ann,OU=Lab,O=Tidelog,C=DE"),
        ("/DC=com/DC=example/UID=7/CN=x", "CN=x,UID=7,DC=example,DC=com"),
        ("/O=A, B \\+ C/CN=a\"b;c<d>e=f#g", 'CN=a\\"b\\;c\\<d\\>e\\=f\\#g,O=A\\, B \\+ C'),
        ("/CN=Jürgen Ω", "CN=Jürgen Ω"),
        ("/CN= both ends ", "CN=\\ both ends\\ "),
        ("/serialNumber=7/CN=x", "CN=x,2.5.4.5=#130137"),
    ],
)  # fmt: skip
def test_a_subject_is_written_from_its_last_part_on(authority: Authority, subject: str, written: str) -> None:
    assert subject_of(der_of(authority.issue("name", subject).certificate)) == written


def test_a_part_of_several_values_keeps_their_order(authority: Authority) -> None:
    from tests.support.certificates import openssl

    certificate = authority.certificate.parent / "multi.crt"
    openssl("req", "-x509", "-new", "-key", authority.pair.key, "-multivalue-rdn", "-subj", "/O=x/CN=a+UID=b",
            "-out", certificate)  # fmt: skip
    assert subject_of(der_of(certificate)) in ("CN=a+UID=b,O=x", "UID=b+CN=a,O=x")


@pytest.mark.parametrize(
    ("value", "escaped"), [("", ""), ("   ", "\\ \\ \\ "), ("a\0b", "a\\00b"), ("\\", "\\\\"), (" \r", "\\ \\\r")]
)
def test_values_are_escaped(value: str, escaped: str) -> None:
    assert escape_value(value) == escaped


def test_a_certificate_cut_anywhere_is_refused_or_read(authority: Authority) -> None:
    """No other exception leaves: such bytes come from outside."""
    whole = der_of(authority.issue("cut", "/C=DE/CN=ann").certificate)
    for end in range(len(whole)):
        with pytest.raises(MalformedCertificateError):
            subject_of(whole[:end])


def test_a_certificate_damaged_anywhere_is_refused_or_read(authority: Authority) -> None:
    whole = der_of(authority.issue("damaged", "/C=DE/CN=ann").certificate)
    for position in range(300):
        for value in (0, 0x30, 0x7F, 0x80, 0x84, 0xFF):
            damaged = bytearray(whole)
            damaged[position] = value
            try:
                assert isinstance(subject_of(bytes(damaged)), str)
            except MalformedCertificateError:
                continue
