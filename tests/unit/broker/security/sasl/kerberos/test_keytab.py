"""The keytab of a listener: errors that refuse the start, and errors of GSS-API; its package is replaced by a stub."""

from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tidelog.broker.security.sasl.errors import AuthenticationFailedError
from tidelog.broker.security.sasl.jaas import KERBEROS_MODULE, PLAIN_MODULE
from tidelog.broker.security.sasl.kerberos.keytab import build_server
from tidelog.broker.security.sasl.listener import SaslListener
from tidelog.broker.security.sasl.mechanism import Reply
from tidelog.protocol.config_def import ConfigError

REALM = "TIDE.TEST"
OPTIONS = f'useKeyTab=true storeKey=true keyTab="broker.keytab" principal="kafka/localhost@{REALM}"'


class GSSError(Exception):
    pass


class Name:
    def __init__(self, text: str, _kind: object = None) -> None:
        self.text = text

    def canonicalize(self, _mechanism: object) -> str:
        return f"{self.text}@{REALM}"


class SecurityContext:
    """Takes the ticket ``good``, and gives no proof. For a ticket that was shown before, it returns an error for
    the client, and raises its own at the next look, as the package does."""

    def __init__(self, *, creds: object, usage: str) -> None:
        assert (creds, usage) == ("credentials", "accept")
        self._ticket = b""

    def step(self, token: bytes) -> bytes | None:
        if token not in (b"good", b"replayed", b"latin"):
            raise GSSError("Clock skew too great" * 100)
        self._ticket = token
        return b"KRB-ERROR" if token == b"replayed" else None

    @property
    def complete(self) -> bool:
        if self._ticket == b"replayed":
            raise GSSError("Request is a replay")
        return True

    @property
    def initiator_name(self) -> str:
        return (b"\xe4nn" if self._ticket == b"latin" else b"ann").decode() + f"@{REALM}"

    def wrap(self, message: bytes, _encrypt: bool) -> Any:
        return SimpleNamespace(message=message)

    def unwrap(self, message: bytes) -> Any:
        return SimpleNamespace(message=message)


@pytest.fixture
def requested_credentials(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, Any]]:
    """The names and stores that credentials were asked for; the store ``empty`` has none."""
    found: list[tuple[str | None, Any]] = []

    def credentials(*, name: Name | None, mechs: list[str], usage: str, store: dict[str, str] | None) -> str:
        assert (mechs, usage) == (["krb5"], "accept")
        if store == {"keytab": "empty"}:
            raise GSSError("No key table entry found")
        found.append((None if name is None else name.text, store))
        return "credentials"

    module: Any = ModuleType("gssapi")
    module.__spec__ = importlib.machinery.ModuleSpec("gssapi", None)
    module.MechType = SimpleNamespace(kerberos="krb5")
    module.NameType = SimpleNamespace(kerberos_principal=1, user=2)
    module.exceptions = SimpleNamespace(GSSError=GSSError)
    module.Name, module.SecurityContext, module.Credentials = Name, SecurityContext, credentials
    monkeypatch.setitem(sys.modules, "gssapi", module)
    return found


def texts_of(options: str = OPTIONS, module: str = KERBEROS_MODULE, **more: str) -> dict[str, str]:
    texts = {"sasl.enabled.mechanisms": "GSSAPI", "sasl.jaas.config": f"{module} required {options};"}
    return texts | {f"sasl.kerberos.{key.replace('_', '.')}": text for key, text in more.items()}


def test_a_listener_takes_tickets_by_its_keytab(requested_credentials: list[tuple[str | None, Any]]) -> None:
    listener = SaslListener("OUT", texts_of(service_name="kafka"), lambda *_: None)
    exchange = listener.mechanisms["GSSAPI"]()
    replies = [exchange.evaluate(token)() for token in (b"good", b"\x01\0\0\0")]  # type: ignore[operator]
    assert replies[-1] == Reply(b"", "ann")
    assert requested_credentials == [(f"kafka/localhost@{REALM}", {"keytab": "broker.keytab"})]


def test_an_error_of_gssapi_is_the_reason_of_a_refusal_and_is_cut(
    requested_credentials: list[tuple[str | None, Any]],
) -> None:
    exchange = build_server("OUT", texts_of())()
    with pytest.raises(Exception, match="invalid credentials") as refused:
        exchange.evaluate(b"bad")()
    assert "Clock skew" in refused.value.reason  # type: ignore[attr-defined]
    assert len(refused.value.reason) < 500  # type: ignore[attr-defined]


@pytest.mark.parametrize(("ticket", "reason"), [(b"replayed", "Request is a replay"), (b"latin", "can't decode")])
def test_an_error_of_a_later_step_refuses_the_login_too(
    requested_credentials: list[tuple[str | None, Any]], ticket: bytes, reason: str
) -> None:
    exchange = build_server("OUT", texts_of())()
    with pytest.raises(AuthenticationFailedError, match="invalid credentials") as refused:
        exchange.evaluate(ticket)()
    assert reason in refused.value.reason


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ('principal="*" keyTab="file:/x"', (None, {"keytab": "/x"})),
        ('principal="kafka/a"', ("kafka/a", None)),
        ('useKeyTab=TRUE principal="kafka/a" debug=true serviceName=kafka', ("kafka/a", None)),
    ],
)
def test_the_options_name_the_key(
    requested_credentials: list[tuple[str | None, Any]], options: str, expected: tuple[str | None, Any]
) -> None:
    build_server("OUT", texts_of(options))
    assert requested_credentials == [expected]


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "Krb5LoginModule"),
        (texts_of(module=PLAIN_MODULE), "Krb5LoginModule"),
        (texts_of('keyTab="x"'), "Krb5LoginModule"),
        (texts_of('useKeyTab=false principal="kafka/a"'), "Krb5LoginModule"),
        (texts_of('principal="kafka/a" user.provider.url="ldap://x"'), "Krb5LoginModule"),
        (texts_of(service_name="other"), r"sasl\.kerberos\.service\.name"),
        (texts_of('principal="kafka/a" serviceName=other'), r"sasl\.kerberos\.service\.name"),
        (texts_of('principal="kafka/a" keyTab=empty'), "No key table entry found"),
        (texts_of(principal_to_local_rules="RULE"), r"principal\.to\.local\.rules"),
    ],
)
def test_options_that_name_no_key_refuse_the_start(
    requested_credentials: list[tuple[str | None, Any]], texts: dict[str, str], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        build_server("OUT", texts)


def test_without_the_package_the_start_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.security.sasl.kerberos.keytab.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pip install tidelog\[kerberos\]"):
        SaslListener("OUT", {}, lambda *_: None)


def test_a_machine_without_a_default_realm_has_none(
    requested_credentials: list[tuple[str | None, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_name: Name, _mechanism: object) -> str:
        raise GSSError("Configuration file does not specify default realm")

    monkeypatch.setattr(Name, "canonicalize", refuse)
    exchange = build_server("OUT", texts_of())()
    exchange.evaluate(b"good")()
    with pytest.raises(Exception, match="invalid credentials") as refused:
        exchange.evaluate(b"\x01\0\0\0")()
    assert "no rule" in refused.value.reason  # type: ignore[attr-defined]
