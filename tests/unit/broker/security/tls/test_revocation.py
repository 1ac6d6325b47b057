"""Client certificates that their authority has revoked, or whose authority was revoked."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.support.certificates import Certificates
from tests.support.tls import TlsPair, client_context, server_context
from tidelog.broker.config.keys.security import listener_values
from tidelog.broker.security.sasl.oauth.settings import trust_of
from tidelog.broker.security.tls.client import build_client_context
from tidelog.broker.security.tls.revocation import revocation_flags
from tidelog.broker.security.tls.subject_names import MalformedCertificateError
from tidelog.client import ClientError
from tidelog.client.sasl.bearer import BearerCredentials
from tidelog.client.security import Security
from tidelog.client.trust import build_context, read_trusted
from tidelog.protocol.config_def import ConfigError

NOW = datetime.now(UTC)


def name_of(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Holder:
    """A key and its certificate, which may sign others and revoke them."""

    def __init__(self, name: str, issuer: Holder | None = None, *, is_authority: bool = True) -> None:
        self.name, self.key = name_of(name), ec.generate_private_key(ec.SECP256R1())
        signer = issuer or self
        builder = x509.CertificateBuilder(signer.name, self.name, self.key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(NOW - timedelta(days=1)).not_valid_after(NOW + timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        self.certificate = builder.sign(signer.key, SHA256())

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def revoke(self, *revoked: Holder, ended: bool = False, of: int | None = None) -> str:
        """Sign the list of this authority, in PEM form; ``of`` makes it one of changes to the list of this number."""
        begin = NOW - timedelta(days=3)
        end = NOW - timedelta(days=1) if ended else NOW + timedelta(days=1)
        builder = x509.CertificateRevocationListBuilder(self.name, begin, end)
        if of is not None:
            builder = builder.add_extension(x509.DeltaCRLIndicator(of), critical=True)
        for one in revoked:
            entry = x509.RevokedCertificateBuilder(one.certificate.serial_number, begin).build()
            builder = builder.add_revoked_certificate(entry)
        return builder.sign(self.key, SHA256()).public_bytes(Encoding.PEM).decode()


ROOT = Holder("root")
MIDDLE = Holder("middle", ROOT)
OTHER = Holder("other")
ANN = Holder("ann", MIDDLE, is_authority=False)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def anns_chain(tmp_path: Path) -> Path:
    """Write ANN's key, its certificate and that of MIDDLE."""
    key = ANN.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    path = tmp_path / "ann.pem"
    path.write_text(key + ANN.pem + MIDDLE.pem)
    return path


@pytest.mark.parametrize(
    ("trusted", "is_let_in"),
    [
        ([ROOT.pem], True),
        ([ROOT.pem, ROOT.revoke(), MIDDLE.revoke()], True),
        ([MIDDLE.pem, MIDDLE.revoke()], True),  # the list of MIDDLE's own authority is not there
        ([ROOT.pem, MIDDLE.pem, MIDDLE.revoke()], True),
        ([ROOT.pem, ROOT.revoke(), MIDDLE.revoke(ANN)], False),
        ([MIDDLE.pem, MIDDLE.revoke(ANN)], False),
        ([ROOT.pem, ROOT.revoke(MIDDLE), MIDDLE.revoke()], False),
        ([ROOT.pem, MIDDLE.pem, ROOT.revoke(MIDDLE), MIDDLE.revoke()], False),
        ([ROOT.pem, ROOT.revoke(), MIDDLE.revoke(ended=True)], False),
        ([ROOT.pem, OTHER.pem, OTHER.revoke()], False),
        ([ROOT.pem, ROOT.revoke()], False),  # nothing says whether ann's is revoked
    ],
)
def test_a_client_comes_in_unless_a_list_revokes_its_chain(
    certificates: Certificates, tmp_path: Path, trusted: list[str], is_let_in: bool
) -> None:
    store = tmp_path / "trusted.pem"
    store.write_text("".join(trusted))
    server = server_context(
        certificates, ssl_client_auth="required", ssl_truststore_type="PEM", ssl_truststore_location=str(store)
    )
    client = client_context(certificates.authority.certificate)
    client.load_cert_chain(anns_chain(tmp_path))
    if is_let_in:
        TlsPair(server, client).close()
        return
    with pytest.raises(ssl.SSLCertVerificationError):
        TlsPair(server, client)


def trust_of_a_listener(store: Path) -> ssl.SSLContext:
    """Build TLS of a broker towards the endpoint of an issuer's keys."""
    found = trust_of({"ssl.truststore.type": "PEM", "ssl.truststore.location": str(store)})
    assert found is not None
    return found


def trust_by_text(store: Path) -> ssl.SSLContext:
    """Build TLS of a command or of Spark, with certificates as a value."""
    return Security({"ssl.truststore.type": "PEM", "ssl.truststore.certificates": store.read_text()}).context()


def trust_of_tokens(store: Path) -> ssl.SSLContext:
    """Build TLS of a command towards the issuer of its tokens."""
    return BearerCredentials("https://issuer/token", authority=str(store)).context()


clients = pytest.mark.parametrize(
    "build",
    [
        trust_of_a_listener,
        lambda store: build_client_context(
            listener_values({"ssl.truststore.location": str(store), "ssl.truststore.type": "PEM"}, "")
        ),
        lambda store: Security({"ssl.truststore.location": str(store)}).context(),
        trust_by_text,
        trust_of_tokens,
    ],
    ids=["endpoint of keys", "broker to broker", "command, file", "command, text", "issuer of tokens"],
)


@clients
@pytest.mark.parametrize("trusted", [[MIDDLE.pem], [ANN.pem], [MIDDLE.pem, MIDDLE.revoke()], [OTHER.pem]])
def test_a_store_may_hold_an_authority_that_is_no_root_or_the_servers_own_certificate(
    tmp_path: Path, build: Callable[[Path], ssl.SSLContext], trusted: list[str]
) -> None:
    """A broker trusted these, as Java does; a command trusted only roots."""
    store = tmp_path / "trusted.pem"
    store.write_text("".join(trusted))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(anns_chain(tmp_path))
    asking = build(store)
    asking.check_hostname = False  # ann is no host
    if trusted != [OTHER.pem]:
        TlsPair(server, asking).close()
        return
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        TlsPair(server, asking)


@clients
@pytest.mark.parametrize("revoked", [(), (ANN,)])
def test_a_server_is_trusted_unless_a_list_revokes_it(
    tmp_path: Path, build: Callable[[Path], ssl.SSLContext], revoked: tuple[Holder, ...]
) -> None:
    store = tmp_path / "trusted.pem"
    store.write_text(ROOT.pem + ROOT.revoke() + MIDDLE.revoke(*revoked))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(anns_chain(tmp_path))
    asking = build(store)
    assert asking.check_hostname
    asking.check_hostname = False  # ann is no host
    if not revoked:
        TlsPair(server, asking).close()
        return
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        TlsPair(server, asking)


def test_a_client_refuses_a_delta_list() -> None:
    with pytest.raises(ClientError, match="complete revocation lists"):
        build_context(ROOT.pem + ROOT.revoke() + ROOT.revoke(MIDDLE, of=1))


def test_a_client_takes_a_file_or_a_text_of_certificates_not_both() -> None:
    with pytest.raises(ClientError, match="not both"):
        read_trusted("trusted.pem", ROOT.pem)


@pytest.mark.parametrize("content", ["MAA=", "M", "MAA=\ufffd"])
def test_a_list_that_cannot_be_read_is_malformed(content: str) -> None:
    with pytest.raises(MalformedCertificateError):
        revocation_flags(f"-----BEGIN X509 CRL-----\n{content}\n-----END X509 CRL-----")


def test_a_list_of_changes_is_refused_as_it_would_stand_for_the_whole_one(
    certificates: Certificates, tmp_path: Path
) -> None:
    store = tmp_path / "trusted.pem"
    store.write_text(ROOT.pem + ROOT.revoke() + MIDDLE.revoke(of=1) + MIDDLE.revoke(ANN))
    with pytest.raises(ConfigError, match="complete revocation lists"):
        server_context(
            certificates, ssl_client_auth="required", ssl_truststore_type="PEM", ssl_truststore_location=str(store)
        )
