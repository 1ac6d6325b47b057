"""GSSAPI (RFC 4752): the server's side. Kerberos proves who the client is, then both agree on no security layer.

    client  AP-REQ, the ticket with a proof     server  AP-REP, the broker's proof; the offer, if no proof is asked for
    client  an empty token                      server  the offer, signed: no security layer, as TLS is used for that
    client  the choice, signed, and a name      the exchange is complete

The name that the client wants to act as is ignored: the user is the ticket's principal, by the listener's rules. Each
token is evaluated in a thread, as that reads the keytab and writes the cache of tickets that were used already. Source
of the checks: Kafka's SaslServerAuthenticator with Java's GssKrb5Server.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from tidelog.broker.security.sasl.errors import AuthenticationFailedError, InvalidTokenError
from tidelog.broker.security.sasl.kerberos.rules import KerberosRules, NoRuleAppliesError
from tidelog.broker.security.sasl.mechanism import Evaluation, Reply

GSSAPI = "GSSAPI"
NO_LAYER = 1
OFFER = bytes((NO_LAYER, 0, 0, 0))
"""The offered layers, and the largest wrapped message, which is 0 without a layer."""
REFUSED = "Authentication failed during authentication due to invalid credentials with SASL mechanism GSSAPI"
"""The client's error for every refused ticket; the log has the reason."""


class SecurityContext(Protocol):
    """A context of GSS-API that accepts one client. Any thread, one at a time."""

    def accept(self, token: bytes, /) -> bytes:
        """Take the client's next token, and return the answer, which may be empty. Raises RefusedTicketError."""
        ...

    @property
    def is_complete(self) -> bool:
        """Return whether Kerberos has authenticated the client. Raises RefusedTicketError."""
        ...

    @property
    def initiator(self) -> str:
        """The client's principal, with its realm. Raises RefusedTicketError."""
        ...

    def wrap(self, message: bytes, /) -> bytes:
        """Sign the message. Raises RefusedTicketError."""
        ...

    def unwrap(self, message: bytes, /) -> bytes:
        """Return the client's message, whose signature is good. Raises RefusedTicketError."""
        ...


class RefusedTicketError(Exception):
    """A token that GSS-API refuses; the text is the reason, which is only logged."""


class KerberosServer:
    """One exchange by GSSAPI."""

    def __init__(self, begin: Callable[[], SecurityContext], rules: KerberosRules) -> None:
        """``begin`` returns a new context; it is called in a thread."""
        self._begin = begin
        self._rules = rules
        self._context: SecurityContext | None = None
        self._step: Callable[[bytes], Reply] = self._accept
        self.claimed = ""

    def evaluate(self, token: bytes, /) -> Evaluation:
        """Return the work on the client's next token."""
        return partial(self._take, token)

    def _take(self, token: bytes) -> Reply:
        """Answer a token. Any thread. Raises InvalidTokenError, AuthenticationFailedError."""
        try:
            return self._step(token)
        except RefusedTicketError as error:
            raise AuthenticationFailedError(REFUSED, f"{REFUSED}: {error}") from None

    def _accept(self, token: bytes) -> Reply:
        """Answer a token of Kerberos itself."""
        context = self._context
        if context is None:
            context = self._context = self._begin()
        answer = context.accept(token)
        if not context.is_complete:
            return Reply(answer)
        self.claimed = context.initiator
        if not answer:
            return self._offer(b"")
        self._step = self._offer
        return Reply(answer)

    def _offer(self, token: bytes) -> Reply:
        """Offer the layers, after the client has received this broker's proof or asked for none."""
        if token:
            raise InvalidTokenError("a token follows the last one of Kerberos")
        self._step = self._finish
        return Reply(self._proved_context().wrap(OFFER))

    def _finish(self, token: bytes) -> Reply:
        """Check the client's choice."""
        context = self._proved_context()
        choice = context.unwrap(token)
        if len(choice) < len(OFFER) or choice[0] != NO_LAYER:
            raise InvalidTokenError("the client chose a security layer that was not offered")
        try:
            return Reply(b"", self._rules.name_of(context.initiator))
        except NoRuleAppliesError as error:
            raise AuthenticationFailedError(REFUSED, f"{REFUSED}: {error}") from None

    def _proved_context(self) -> SecurityContext:
        assert self._context is not None
        return self._context
