"""Configuration keys of listeners that encrypt or authenticate.

Each, except AUTHENTICATION_KEYS, may be given for a single listener, as ``listener.name.<name in lower case>.<key>``;
that value wins.
Source: SslConfigs, BrokerSecurityConfigs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidelog.protocol.config_def import (
    Check,
    ConfigDef,
    ConfigError,
    ConfigKey,
    ConfigType,
    Importance,
    between,
    each_of,
    non_empty,
    one_of,
)

STRING, LIST, PASSWORD = ConfigType.STRING, ConfigType.LIST, ConfigType.PASSWORD
INT, LONG = ConfigType.INT, ConfigType.LONG
HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
STORE_TYPES = ("PEM", "PKCS12", "JKS")
PROTOCOLS = ("TLSv1.2", "TLSv1.3")

PLAIN_HANDLER = "org.apache.kafka.common.security.plain.internals.PlainServerCallbackHandler"
SECURED_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
UNSECURED_HANDLER = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
)
HANDLERS = (PLAIN_HANDLER, SECURED_HANDLER, UNSECURED_HANDLER)
VALIDATORS = (
    "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
    "org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator",
)


def allow_only(*values: str | None) -> Check:
    """Return a check that accepts Kafka's default only, for a key that names a class or a provider of Java."""
    return Check(lambda value: value in values, f"nothing but {values[0]}" if values[0] else "no value")


# fmt: off
TLS_KEYS = (
    ConfigKey("ssl.keystore.type", STRING, "JKS", one_of(*STORE_TYPES), MEDIUM,
        "PEM or PKCS12. A file of type JKS, Kafka's default, is read if it holds PKCS12, as those of Java 9 and later "
        "do."),
    ConfigKey("ssl.keystore.location", STRING, None, None, HIGH,
        "The file of the listener's private key and certificate chain."),
    ConfigKey("ssl.keystore.password", PASSWORD, None, None, HIGH,
        "The password of a PKCS12 file; a PEM file has none."),
    ConfigKey("ssl.keystore.key", PASSWORD, None, None, HIGH,
        "The private key itself, in PEM form (PKCS8), in place of a file."),
    ConfigKey("ssl.keystore.certificate.chain", PASSWORD, None, None, HIGH,
        "The certificate chain itself, in PEM form, beside ssl.keystore.key."),
    ConfigKey("ssl.key.password", PASSWORD, None, None, HIGH, "The password of the private key."),
    ConfigKey("ssl.truststore.type", STRING, "JKS", one_of(*STORE_TYPES), MEDIUM,
        "PEM or PKCS12, as ssl.keystore.type."),
    ConfigKey("ssl.truststore.location", STRING, None, None, HIGH,
        "The file of trusted certificates, by which those of clients, controllers and other brokers are checked. "
        "Without one the system's are used."),
    ConfigKey("ssl.truststore.password", PASSWORD, None, None, HIGH, "The password of a PKCS12 file."),
    ConfigKey("ssl.truststore.certificates", PASSWORD, None, None, HIGH,
        "The trusted certificates themselves, in PEM form, in place of a file."),
    ConfigKey("ssl.client.auth", STRING, "none", one_of("none", "requested", "required"), MEDIUM,
        "Whether clients must show a certificate. requested lets those without one in as User:ANONYMOUS."),
    ConfigKey("ssl.enabled.protocols", LIST, PROTOCOLS, each_of(*PROTOCOLS), MEDIUM, "TLS versions that are accepted."),
    ConfigKey("ssl.cipher.suites", LIST, (), None, LOW,
        "Cipher suites by their IANA names. Default: those with forward secrecy and authenticated encryption."),
    ConfigKey("ssl.principal.mapping.rules", LIST, ("DEFAULT",), None, LOW,
        "Rules that turn a certificate's subject into a principal's name: DEFAULT and RULE:pattern/replacement/[LU], "
        "the first that matches."),
    ConfigKey("ssl.allow.dn.changes", ConfigType.BOOLEAN, False, None, LOW,
        "Whether a changed keystore may have another subject."),
    ConfigKey("ssl.allow.san.changes", ConfigType.BOOLEAN, False, None, LOW,
        "Whether a changed keystore may lack host names that the old one had."),
    ConfigKey("ssl.store.refresh.ms", ConfigType.LONG, 10_000, Check(lambda value: value >= 0, "0 or more"), LOW,
        "How often store files are checked for changes; 0: never. Tidelog's own key."),
    ConfigKey("ssl.endpoint.identification.algorithm", STRING, "https", one_of("https", ""), LOW,
        "Whether the certificates of controllers and other brokers must name the host that this broker connects to; "
        "empty: they need not."),
    ConfigKey("ssl.provider", STRING, None, allow_only(None, ""), LOW,
        "A setting of Java; only an empty value is accepted."),
    ConfigKey("ssl.secure.random.implementation", STRING, None, allow_only(None, ""), LOW,
        "A setting of Java; only an empty value is accepted."),
    ConfigKey("ssl.keymanager.algorithm", STRING, "SunX509", allow_only("SunX509"), LOW,
        "A setting of Java; only its default is accepted."),
    ConfigKey("ssl.trustmanager.algorithm", STRING, "PKIX", allow_only("PKIX"), LOW,
        "A setting of Java; only its default is accepted."),
    ConfigKey("ssl.engine.factory.class", STRING, None, allow_only(None, ""), LOW,
        "A setting of Java; only an empty value is accepted."),
)

SASL_KEYS = (
    ConfigKey("sasl.enabled.mechanisms", LIST, ("GSSAPI",), None, HIGH,
        "The mechanisms of a listener that authenticates: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, and "
        "GSSAPI, which is Kerberos and needs pip install tidelog[kerberos]."),
    ConfigKey("sasl.jaas.config", PASSWORD, None, None, MEDIUM,
        "The JAAS text of one mechanism; its key has the prefix listener.name.NAME.MECHANISM. in lower case. PLAIN's "
        "users are its options user_NAME=\"PASSWORD\", GSSAPI's keytab and principal those of Krb5LoginModule; SCRAM "
        "and OAUTHBEARER need none."),
    ConfigKey("sasl.server.callback.handler.class", ConfigType.CLASS, None, one_of(None, *HANDLERS), LOW,
        "How the credentials of clients are checked, by the name of Kafka's class. OAUTHBEARER needs it: "
        "OAuthBearerValidatorCallbackHandler for signed tokens, OAuthBearerUnsecuredValidatorCallbackHandler for "
        "unsigned ones, which only a listener on a loopback address accepts. No class is loaded."),
    ConfigKey("connections.max.reauth.ms", LONG, 0, between(0), MEDIUM,
        "How long a client may go on before it authenticates again (KIP-368); 0: as long as it is connected."),
    ConfigKey("sasl.server.max.receive.size", INT, 524_288, between(1), MEDIUM,
        "The largest request, in bytes, of a client that is not authenticated yet."),
    ConfigKey("connection.authentication.timeout.ms", INT, 10_000, between(1), MEDIUM,
        "How long a client may take to authenticate. Tidelog's own key."),
    ConfigKey("connection.failed.authentication.delay.ms", INT, 100, between(0), LOW,
        "How long a client whose authentication failed waits for the answer; longer for an address that fails often."),
)

OAUTHBEARER_KEYS = (
    ConfigKey("sasl.oauthbearer.jwks.endpoint.url", STRING, None, None, MEDIUM,
        "The URL of the keys (JWKS) that verify signed tokens: https or file, or http on this machine. It must not "
        "contain a user or password."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, 3_600_000, between(1), LOW,
        "How often the keys are read again. A token with an unknown key id makes them be read earlier, at most once a "
        "minute."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", LONG, 100, between(1), LOW,
        "The pause after a failed read of the keys; each further failure doubles it."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", LONG, 10_000, between(1), LOW,
        "The longest pause after failed reads of the keys."),
    ConfigKey("sasl.oauthbearer.clock.skew.seconds", INT, 30, between(0), LOW,
        "How far the clock of the tokens' issuer may be from this machine's."),
    ConfigKey("sasl.oauthbearer.expected.audience", LIST, None, None, LOW,
        "The accepted audiences of a token (its claim aud)."),
    ConfigKey("sasl.oauthbearer.expected.issuer", STRING, None, None, LOW,
        "The accepted issuer of a token (its claim iss)."),
    ConfigKey("sasl.oauthbearer.scope.claim.name", STRING, "scope", non_empty(), LOW,
        "The claim that holds a token's scopes."),
    ConfigKey("sasl.oauthbearer.sub.claim.name", STRING, "sub", non_empty(), LOW,
        "The claim that holds the name of the principal."),
    ConfigKey("sasl.oauthbearer.jwt.validator.class", ConfigType.CLASS, VALIDATORS[0], one_of(*VALIDATORS), LOW,
        "A setting of Java; only Kafka's own validators are accepted."),
    ConfigKey("org.apache.kafka.sasl.oauthbearer.allowed.urls", LIST, None, None, LOW,
        "URLs of keys that may be used; any if it is not given. Kafka's system property, read from KAFKA_OPTS, too."),
    ConfigKey("org.apache.kafka.sasl.oauthbearer.allowed.files", LIST, None, None, LOW,
        "Files of keys that may be used; any if it is not given. Kafka's system property, read from KAFKA_OPTS, too."),
)

KERBEROS_KEYS = (
    ConfigKey("sasl.kerberos.service.name", STRING, None, None, MEDIUM,
        "The service that clients ask a ticket for: the first part of this broker's Kerberos principal."),
    ConfigKey("sasl.kerberos.principal.to.local.rules", LIST, ("DEFAULT",), None, MEDIUM,
        "Rules that turn a Kerberos principal into a user's name, in Kafka's form; the first that applies wins. "
        "DEFAULT: the principal's first part, if its realm is the default one."),
)

AUTHENTICATION_KEYS = (
    ConfigKey("max.unauthenticated.connections", INT, 1000, between(1), MEDIUM,
        "The most connections that are not authenticated yet; one more closes the oldest of them. Tidelog's own key."),
    ConfigKey("max.unauthenticated.connections.per.ip", INT, 100, between(1), MEDIUM,
        "As max.unauthenticated.connections, for one address, or one network of 64 bits of IPv6. Tidelog's own key."),
    ConfigKey("failed.authentication.rate", INT, 10, between(1), LOW,
        "Failed authentications of one address in a second; from then on each doubles the wait for the answer, up to "
        "five seconds. Tidelog's own key."),
)
# fmt: on

LISTENER_CONFIG_DEF = ConfigDef((*TLS_KEYS, *SASL_KEYS, *OAUTHBEARER_KEYS, *KERBEROS_KEYS))
"""Keys that a listener may have values of its own for."""
MECHANISM_KEYS = frozenset(
    {
        "sasl.jaas.config",
        "sasl.server.callback.handler.class",
        "connections.max.reauth.ms",
        *(key.name for key in (*OAUTHBEARER_KEYS, *KERBEROS_KEYS) if key.name.startswith("sasl.")),
    }
)
"""Keys that each mechanism of a listener may have values of its own for."""


STORE_KEYS = frozenset(
    {
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.key.password",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.certificates",
    }
)
"""Keys that may be changed for a listener while the broker runs. Source: SslConfigs.RECONFIGURABLE_CONFIGS."""


def store_key_of(key: str) -> ConfigKey | None:
    """Return the store key that a key with a listener's prefix sets; None for any other key."""
    parts = key.split(".", 3)
    is_store = len(parts) == 4 and parts[:2] == ["listener", "name"] and parts[3] in STORE_KEYS
    return LISTENER_CONFIG_DEF[parts[3]] if is_store else None


def listener_prefix(name: str) -> str:
    """Return the prefix of the keys of one listener."""
    return f"listener.name.{name.lower()}."


def is_listener_key(key: str) -> bool:
    """Return whether this is a security key with the prefix of a listener, whose name is in lower case there, or of a
    listener's mechanism."""
    parts = key.split(".", 3)
    if len(parts) != 4 or parts[:2] != ["listener", "name"] or parts[2] != parts[2].lower():
        return False
    return parts[3] in LISTENER_CONFIG_DEF or parts[3].partition(".")[2] in MECHANISM_KEYS


def listener_values(texts: Mapping[str, str], name: str) -> dict[str, Any]:
    """Parse the values of a listener's security keys: those with its prefix win. Raises ConfigError."""
    prefix = listener_prefix(name)
    given = {key: text for key, text in texts.items() if key in LISTENER_CONFIG_DEF}
    given |= {
        key.removeprefix(prefix): text
        for key, text in texts.items()
        if key.startswith(prefix) and key.removeprefix(prefix) in LISTENER_CONFIG_DEF
    }
    try:
        return LISTENER_CONFIG_DEF.parse(given)
    except ConfigError as error:
        raise ConfigError(f"listener {name}: {error.message}") from error


def mechanism_values(texts: Mapping[str, str], name: str, mechanism: str) -> dict[str, Any]:
    """Parse the values of a mechanism of a listener: those with the prefix of both win. Raises ConfigError."""
    prefix = f"{listener_prefix(name)}{mechanism.lower()}."
    own = {key: texts[prefix + key] for key in MECHANISM_KEYS if prefix + key in texts}
    return listener_values({**texts, **{listener_prefix(name) + key: text for key, text in own.items()}}, name)
