"""The exchange of GSSAPI with a stub of the security context."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tidelog.broker.security.sasl.errors import AuthenticationFailedError, InvalidTokenError
from tidelog.broker.security.sasl.kerberos.rules import KerberosRules
from tidelog.broker.security.sasl.kerberos.server import OFFER, REFUSED, KerberosServer, RefusedTicketError
from tidelog.broker.security.sasl.mechanism import Reply

REALM = "TIDE.TEST"


class Context:
    """A context that gives these answers, one for each token; a signed message begins with ``+``."""

    def __init__(self, answers: Sequence[bytes] = (b"proof",), initiator: str = f"ann@{REALM}") -> None:
        self._answers = list(answers)
        self.initiator = initiator

    def accept(self, token: bytes) -> bytes:
        if token == b"forged":
            raise RefusedTicketError("Clock skew too great")
        return self._answers.pop(0)

    @property
    def is_complete(self) -> bool:
        return not self._answers

    def wrap(self, message: bytes) -> bytes:
        return b"+" + message

    def unwrap(self, message: bytes) -> bytes:
        if message[:1] != b"+":
            raise RefusedTicketError("Message stream modified")
        return message[1:]


def server(context: Context | None = None, rules: Sequence[str] = ("DEFAULT",)) -> KerberosServer:
    found = context or Context()
    return KerberosServer(lambda: found, KerberosRules(rules, REALM))


def run(exchange: KerberosServer, *tokens: bytes) -> list[Reply]:
    return [exchange.evaluate(token)() for token in tokens]


CHOICE = b"+" + OFFER


def test_a_client_is_the_user_of_its_ticket() -> None:
    exchange = server()
    assert run(exchange, b"ticket", b"", CHOICE) == [Reply(b"proof"), Reply(b"+" + OFFER), Reply(b"", "ann")]
    assert exchange.claimed == f"ann@{REALM}"


def test_a_client_that_asks_for_no_proof_gets_the_offer_at_once() -> None:
    assert run(server(Context([b""])), b"ticket", CHOICE) == [Reply(b"+" + OFFER), Reply(b"", "ann")]


def test_kerberos_may_take_several_tokens() -> None:
    replies = run(server(Context([b"go on", b"proof"])), b"ticket", b"more", b"", CHOICE)
    assert [reply.user for reply in replies] == [None, None, None, "ann"]


def test_the_name_that_the_client_wants_to_act_as_is_not_looked_at() -> None:
    assert run(server(), b"ticket", b"", CHOICE + b"admin")[-1].user == "ann"


@pytest.mark.parametrize("tokens", [(b"forged",), (b"ticket", b"", OFFER), (b"ticket", b"", b"")])
def test_a_token_that_is_not_good_is_refused_and_the_client_learns_no_reason(tokens: tuple[bytes, ...]) -> None:
    with pytest.raises(AuthenticationFailedError, match=f"^{REFUSED}$") as refused:
        run(server(), *tokens)
    assert refused.value.reason != REFUSED


@pytest.mark.parametrize(
    "tokens",
    [
        (b"ticket", b"more"),
        (b"ticket", b"", b"+"),
        (b"ticket", b"", b"+\x01\0\0"),
        *((b"ticket", b"", b"+" + bytes((layer, 0, 0, 0))) for layer in (0, 2, 3, 4, 7, 255)),
    ],
)
def test_a_wrong_answer_to_the_offer_is_refused(tokens: tuple[bytes, ...]) -> None:
    with pytest.raises(InvalidTokenError):
        run(server(), *tokens)


def test_a_principal_without_a_rule_is_refused() -> None:
    with pytest.raises(AuthenticationFailedError, match=f"^{REFUSED}$") as refused:
        run(server(rules=("RULE:[2:$1]",)), b"ticket", b"", CHOICE)
    assert "no rule" in refused.value.reason
