"""Certificates for tests, made by the ``openssl`` command: a CA, and pairs (key, certificate) of server and clients."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.requirements import missing

PASSWORD = "store-password"


def openssl(*arguments: str | Path, text: str = "") -> str:
    """Run ``openssl``; return its output."""
    try:
        done = subprocess.run(
            ["openssl", *map(str, arguments)], input=text, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        missing("openssl", "apt-get install openssl")
    assert done.returncode == 0, done.stderr
    return done.stdout


class Pair:
    """A private key (``NAME.key``) and its certificate (``NAME.crt``); ``NAME.pem`` and ``NAME.p12`` have both."""

    def __init__(self, directory: Path, name: str) -> None:
        self.key, self.certificate = directory / f"{name}.key", directory / f"{name}.crt"
        self.pem, self.pkcs12 = directory / f"{name}.pem", directory / f"{name}.p12"

    def join(self) -> Pair:
        """Write key and certificate into one PEM file."""
        self.pem.write_bytes(self.key.read_bytes() + self.certificate.read_bytes())
        return self

    def export(self, *chain: Path) -> Path:
        """Write key, certificate and a chain into a PKCS12 file, as keytool would."""
        more = [argument for path in chain for argument in ("-certfile", path)]
        openssl("pkcs12", "-export", "-inkey", self.key, "-in", self.certificate, *more, "-out", self.pkcs12,
                "-passout", f"pass:{PASSWORD}", "-name", "pair")  # fmt: skip
        return self.pkcs12


class Authority:
    """A CA with its files in ``directory``; ``issue`` creates pairs."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self.pair = Pair(directory, name)
        make_key(self.pair.key)
        openssl("req", "-x509", "-new", "-key", self.pair.key, "-subj", f"/CN={name}", "-days", "30",
                "-out", self.pair.certificate)  # fmt: skip

    @property
    def certificate(self) -> Path:
        return self.pair.certificate

    def issue(
        self, name: str, subject: str, *, hosts: str = "DNS:localhost,IP:127.0.0.1", days: int = 30, key: str = "EC"
    ) -> Pair:
        """Issue a pair for ``subject``, in openssl's form ``/CN=...``; with negative days it has expired."""
        pair = Pair(self._directory, name)
        make_key(pair.key, key)
        request, extensions = self._directory / f"{name}.csr", self._directory / f"{name}.ext"
        openssl("req", "-new", "-utf8", "-key", pair.key, "-subj", subject, "-out", request)
        extensions.write_text(f"subjectAltName={hosts}\nbasicConstraints=CA:FALSE\n")
        openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.pair.key, "-CAcreateserial",
                "-days", str(days), "-extfile", extensions, "-out", pair.certificate)  # fmt: skip
        return pair.join()


KEYS = {"EC": "ec_paramgen_curve:P-256", "RSA": "rsa_keygen_bits:2048"}


def make_key(path: Path, algorithm: str = "EC") -> None:
    """Make a new key as PKCS8: P-256, or RSA of 2,048 bits."""
    openssl("genpkey", "-algorithm", algorithm, "-pkeyopt", KEYS[algorithm], "-out", path)
    path.chmod(0o600)


class Certificates:
    """Pairs of a server and of a client by one CA, and a client's pair by another CA (``stranger``)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.server = self.authority.issue("server", "/CN=localhost/O=Tidelog")
        self.client = self.authority.issue("client", "/C=DE/O=Tidelog/OU=Lab/CN=ann")
        self.stranger = Authority(directory, "stranger").issue("mallory", "/CN=mallory")

    def server_texts(self, **texts: str) -> dict[str, str]:
        """Return the server's configuration with PEM files; ``texts`` are further keys, with underscores for dots."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.server.pem),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.certificate),
        } | {key.replace("_", "."): text for key, text in texts.items()}
