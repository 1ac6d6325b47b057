"""Security of a broker for tests: ``Broker(security=Security(users={"ann": "secret"}))``, and its clients' settings.

A certificate is created for localhost, 127.0.0.1 and ::1, the users can log in by PLAIN and SCRAM, and ACLs exist as
soon as ``start`` returns. The certificate needs ``pip install tidelog[tls]``. All files are in a directory that only
the owner can read; it is removed when the broker stops.
"""

from __future__ import annotations

import datetime
import ipaddress
import secrets
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidelog.client.admin.acls import CLUSTER_NAME, OPERATIONS, PERMISSIONS, RESOURCE_TYPES, Acl, create_acls
from tidelog.client.admin.users import DEFAULT_ITERATIONS, MECHANISMS, set_password
from tidelog.client.cluster import Cluster
from tidelog.client.security import Security as ClientSecurity
from tidelog.client.settings import ClientSettings
from tidelog.private_files import write_privately

ADMIN = "tidelog-test-admin"
PLAIN = "PLAIN"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_MODULES = {PLAIN: "plain.PlainLoginModule"} | dict.fromkeys(MECHANISMS, "scram.ScramLoginModule")
_VALID_DAYS = 35


@dataclass(frozen=True)
class Security:
    """Protocol, users and ACLs of a broker for tests.

    ``acls`` has a list of rules for each user, such as ``"read topic orders"``, ``"all group team-*"`` or
    ``"deny write topic *"``. With ``acls``, even an empty mapping, operations without a rule are refused.
    ``super_users`` may do everything.
    """

    users: Mapping[str, str] = field(default_factory=dict)
    acls: Mapping[str, Sequence[str]] | None = None
    super_users: Sequence[str] = ()
    tls: bool = True
    mechanism: str = "SCRAM-SHA-512"
    """The mechanism in the settings for clients; the broker supports PLAIN and both SCRAM mechanisms."""

    def __post_init__(self) -> None:
        if self.mechanism not in _MODULES:
            raise ValueError(f"mechanism {self.mechanism!r}: expected {', '.join(_MODULES)}")
        if not self.users and (self.acls is not None or not self.tls):
            raise ValueError("ACLs need users, and so does a broker without TLS")
        self.rules()

    @property
    def protocol(self) -> str:
        """Kafka's name of the protocol."""
        return "SASL_" * bool(self.users) + ("SSL" if self.tls else "PLAINTEXT")

    def rules(self) -> list[Acl]:
        """Parse the ACLs. Raises ValueError for a rule that cannot be read."""
        return [parse_rule(user, rule) for user, rules in (self.acls or {}).items() for rule in rules]


def parse_rule(user: str, rule: str) -> Acl:
    """Parse the ACL of ``[allow|deny] OPERATION TYPE NAME``. Raises ValueError.

    The type ``cluster`` needs no name. A name that ends in ``*`` is a prefix; ``*`` alone means all names.
    """
    words = rule.split()
    permission = words.pop(0).lower() if words and words[0].lower() in PERMISSIONS else "allow"
    if words[1:] == ["cluster"]:
        words.append(CLUSTER_NAME)
    if len(words) != 3 or words[0].lower() not in OPERATIONS or words[1].lower() not in RESOURCE_TYPES:
        raise ValueError(f"rule {rule!r} of {user}: expected [allow|deny] OPERATION TYPE NAME, as 'read topic orders'")
    operation, kind, name = words[0].lower(), words[1].lower(), words[2]
    is_prefix = name.endswith("*") and name != "*"
    pattern = "prefixed" if is_prefix else "literal"
    return Acl(kind, name.removesuffix("*") if is_prefix else name, pattern, f"User:{user}", "*", operation, permission)


class SecuredBroker:
    """The files of a secured broker, and the settings with which clients connect to it."""

    def __init__(self, security: Security, directory: Path) -> None:
        """Create the certificate in an empty directory. Raises ImportError if ``cryptography`` is not installed."""
        self._security = security
        self._passwords = {**security.users, ADMIN: secrets.token_urlsafe(16)}
        self._directory = directory
        self.bootstrap = ""
        """``HOST:PORT`` of the broker; empty until it is ready."""
        self.ca = directory / "ca.pem"
        """The certificate that clients trust."""
        if security.tls:
            make_certificate(self.ca, directory / "server.pem")

    def texts(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the given configuration with the keys for security; the given values override them."""
        return {**dict(self._texts()), **given}

    def _texts(self) -> Iterator[tuple[str, str]]:
        protocol = self._security.protocol
        yield "listeners", f"{protocol}://127.0.0.1:0"
        if self._security.tls:
            yield "ssl.keystore.type", "PEM"
            yield "ssl.keystore.location", str(self._directory / "server.pem")
        if self._security.users:
            yield "sasl.enabled.mechanisms", ",".join(_MODULES)
            users = " ".join(f"{quote(f'user_{user}')}={quote(word)}" for user, word in self._passwords.items())
            yield f"listener.name.{protocol.lower()}.plain.sasl.jaas.config", f"{module_of(PLAIN)} required {users};"
        if self._security.acls is not None:
            yield "authorizer.class.name", AUTHORIZER
            yield "super.users", ";".join(f"User:{user}" for user in (ADMIN, *self._security.super_users))

    def prepare(self, bootstrap: str) -> None:
        """Create users and ACLs in the running broker. Raises ClientError, KafkaError."""
        self.bootstrap = bootstrap
        if not self._security.users:
            return
        settings = {name: text for name, text in self._java(ADMIN, PLAIN).items() if name != "bootstrap.servers"}
        with Cluster.open(ClientSettings(bootstrap, ClientSecurity(settings))) as cluster:
            for user, password in self._security.users.items():
                for mechanism in MECHANISMS:
                    set_password(cluster, user, mechanism, password, DEFAULT_ITERATIONS)
            if rules := self._security.rules():
                create_acls(cluster, rules)

    def java(self, user: str = "") -> dict[str, str]:
        """Return the properties for Java's clients and tools, and for ``tidelog --profile``. Raises ValueError for an
        unknown user."""
        return self._java(user, self._security.mechanism)

    def _java(self, user: str, mechanism: str) -> dict[str, str]:
        found = {"bootstrap.servers": self.bootstrap, "security.protocol": self._security.protocol}
        if self._security.tls:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.ca)}
        if self._security.users:
            login = f"username={quote(user)} password={quote(self._password_of(user))}"
            found |= {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{module_of(mechanism)} required {login};"}
        return found

    def librdkafka(self, user: str = "") -> dict[str, Any]:
        """Return the configuration for clients with librdkafka, such as confluent-kafka and kcat. Raises ValueError for
        an unknown user."""
        found = {"bootstrap.servers": self.bootstrap, "security.protocol": self._security.protocol}
        if self._security.tls:
            found["ssl.ca.location"] = str(self.ca)
        if self._security.users:
            found |= {"sasl.mechanism": self._security.mechanism, "sasl.username": user}
            found["sasl.password"] = self._password_of(user)
        return found

    def kafka_python(self, user: str = "") -> dict[str, Any]:
        """Return the keyword arguments for kafka-python's clients. Raises ValueError for an unknown user."""
        found = self._python(user)
        return found | {"ssl_cafile": str(self.ca)} if self._security.tls else found

    def aiokafka(self, user: str = "") -> dict[str, Any]:
        """Return the keyword arguments for aiokafka's clients. Raises ValueError for an unknown user."""
        found = self._python(user)
        return found | {"ssl_context": ssl.create_default_context(cafile=self.ca)} if self._security.tls else found

    def _password_of(self, user: str) -> str:
        """Return a user's password. Raises ValueError."""
        if user not in self._passwords:
            known = ", ".join(map(repr, self._security.users))
            raise ValueError(f"user {user!r}: expected one of those of Security(users=...): {known}")
        return self._passwords[user]

    def _python(self, user: str) -> dict[str, Any]:
        found = {"bootstrap_servers": self.bootstrap, "security_protocol": self._security.protocol}
        if self._security.users:
            found |= {"sasl_mechanism": self._security.mechanism, "sasl_plain_username": user}
            found["sasl_plain_password"] = self._password_of(user)
        return found


def module_of(mechanism: str) -> str:
    """Return Kafka's login module of a mechanism."""
    return f"org.apache.kafka.common.security.{_MODULES[mechanism]}"


def quote(text: str) -> str:
    """Quote a text for a JAAS option."""
    for sign, written in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(sign, written)
    return f'"{text}"'


def make_certificate(certificate: Path, key_store: Path) -> None:
    """Create a self-signed certificate of this machine: alone in ``certificate``, with its key in ``key_store``."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1")]
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
    builder = builder.add_extension(
        x509.SubjectAlternativeName([x509.DNSName("localhost"), *addresses]), critical=False
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    form = serialization.PrivateFormat.PKCS8
    key_pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
    certificate.write_text(pem)
    write_privately(key_store, key_pem + pem)
