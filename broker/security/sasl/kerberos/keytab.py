"""Keytab of one listener, and GSS-API contexts that accept clients with it. MIT Kerberos does the work.

The JAAS text is that of Java's Krb5LoginModule: ``keyTab`` is the file (without it KRB5_KTNAME's or the system's) and
``principal`` the broker's own, ``kafka/host@REALM``, or ``*`` for every key of the file. MIT Kerberos reads the file
for each ticket, so a new key is used at once. ``krb5.conf`` is the system's, or that of KRB5_CONFIG. Source of the
options: Kafka's KerberosLogin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tidelog.broker.config.keys.security import mechanism_values
from tidelog.broker.security.sasl.jaas import JAAS_KEY, KERBEROS_MODULE, LoginModule, parse_jaas
from tidelog.broker.security.sasl.kerberos.rules import RULES_KEY, KerberosRules
from tidelog.broker.security.sasl.kerberos.server import GSSAPI, KerberosServer, RefusedTicketError
from tidelog.protocol.config_def import ConfigError

SERVICE_KEY = "sasl.kerberos.service.name"
OPTIONS = frozenset(
    """
    clearPass debug doNotPrompt isInitiator keyTab principal refreshKrb5Config renewTGT serviceName storeKey storePass
    ticketCache tryFirstPass useFirstPass useKeyTab useTicketCache
    """.split()  # noqa: SIM905
)
"""Options of Krb5LoginModule; only keyTab, principal, serviceName and useKeyTab have an effect here."""
EXAMPLE = f'{KERBEROS_MODULE} required useKeyTab=true storeKey=true keyTab="FILE" principal="kafka/HOST@REALM";'
_LONGEST_REASON = 300


class Acceptor:
    """One GSS-API context that accepts a client.

    The package ``gssapi`` raises an error that has a token for the client late: ``step`` returns the token, and the
    next use of the context raises the error. So each use of the context may raise RefusedTicketError.
    """

    def __init__(self, gssapi: Any, credentials: Any) -> None:
        self._gssapi = gssapi
        self._context = gssapi.SecurityContext(creds=credentials, usage="accept")

    def accept(self, token: bytes, /) -> bytes:
        """Take the client's next token, and return the answer, which may be empty. Raises RefusedTicketError."""
        return self._call(self._context.step, token) or b""

    @property
    def is_complete(self) -> bool:
        """Return whether Kerberos has authenticated the client. Raises RefusedTicketError."""
        return bool(self._call(lambda: self._context.complete))

    @property
    def initiator(self) -> str:
        """The client's principal, with its realm. Raises RefusedTicketError."""
        return str(self._call(lambda: str(self._context.initiator_name)))

    def wrap(self, message: bytes, /) -> bytes:
        """Sign the message. Raises RefusedTicketError."""
        wrapped: bytes = self._call(self._context.wrap, message, False).message
        return wrapped

    def unwrap(self, message: bytes, /) -> bytes:
        """Return the client's message, after checking its signature. Raises RefusedTicketError."""
        unwrapped: bytes = self._call(self._context.unwrap, message).message
        return unwrapped

    def _call(self, step: Callable[..., Any], *arguments: object) -> Any:
        try:
            return step(*arguments)
        except (self._gssapi.exceptions.GSSError, UnicodeDecodeError) as error:
            raise RefusedTicketError(str(error)[:_LONGEST_REASON]) from None


def build_server(listener: str, texts: Mapping[str, str]) -> Callable[[], KerberosServer]:
    """Return a function that begins an exchange. The keytab is read now, so that a broker without its key does not
    start. Raises ConfigError.
    """
    values = mechanism_values(texts, listener, GSSAPI)
    if find_spec("gssapi") is None:
        allowed = "others; GSSAPI, which is Kafka's default, only with `pip install tidelog[kerberos]`"
        raise _refuse(f"sasl.enabled.mechanisms of listener {listener}", GSSAPI, allowed)
    if values[JAAS_KEY] is None:
        raise _refuse(f"{JAAS_KEY} of listener {listener}, {GSSAPI}", None, EXAMPLE)
    module = parse_jaas(values[JAAS_KEY])
    check_module(module, values[SERVICE_KEY])
    gssapi: Any = import_module("gssapi")
    rules = KerberosRules(values[RULES_KEY], default_realm(gssapi))
    credentials = read_keytab(gssapi, module.options)
    return partial(KerberosServer, partial(Acceptor, gssapi, credentials), rules)


def check_module(module: LoginModule, service: str | None) -> None:
    """Raise ConfigError unless a login module is Krb5LoginModule, has only known options, uses a keytab, has a
    principal, and all services named are the same.
    """
    options = module.options
    unknown = sorted(options.keys() - OPTIONS)
    is_keytab = options.get("useKeyTab", "true").lower() == "true"
    if module.name != KERBEROS_MODULE or unknown or not is_keytab or not options.get("principal"):
        raise _refuse(JAAS_KEY, "[hidden]", EXAMPLE)
    names = {service, options.get("serviceName")} - {None}
    if options["principal"] != "*":
        names.add(options["principal"].partition("@")[0].partition("/")[0])
    if len(names) > 1:
        raise _refuse(SERVICE_KEY, service, "the first part of the principal in the JAAS text, and its serviceName")


def read_keytab(gssapi: Any, options: Mapping[str, str]) -> Any:
    """Read the credentials for accepting clients. Raises ConfigError if the keytab has no key of the principal."""
    kerberos, principal = gssapi.MechType.kerberos, options["principal"]
    name = None if principal == "*" else gssapi.Name(principal, gssapi.NameType.kerberos_principal)
    path = options.get("keyTab")
    store = None if path is None else {"keytab": path.removeprefix("file:")}
    try:
        return gssapi.Credentials(name=name, mechs=[kerberos], usage="accept", store=store)
    except gssapi.exceptions.GSSError as error:
        raise ConfigError(f"the keytab {path or 'of the system'} has no key of {principal}: {error}") from error


def default_realm(gssapi: Any) -> str:
    """Return the default realm of krb5.conf, an empty text if it has none."""
    try:
        name = gssapi.Name("user", gssapi.NameType.user).canonicalize(gssapi.MechType.kerberos)
    except gssapi.exceptions.GSSError:
        return ""
    return str(name).partition("@")[2]


def _refuse(key: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"Invalid value {value!r} for configuration {key}; allowed: {allowed}")
