"""The gate of a connection that has to authenticate: it answers the frames until the exchange is complete.

    before    frames go to the exchange (``tidelog.broker.security.sasl.authenticator``), ApiVersions to the broker
    waiting   a token is evaluated in a thread; the client's next frame waits
    complete  frames go to the broker. SaslHandshake begins a re-authentication, once a second at most; past the
              session's lifetime (``connections.max.reauth.ms``) any other request closes the connection
    failed    the answer waits (``connection.failed.authentication.delay.ms``), then the connection closes

So no other frame reaches the broker before, and connections of other listeners pay nothing. Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf

from tidelog.broker.broker import Broker
from tidelog.broker.controller.clients.scram_credentials import ScramCredentials
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.threads import in_thread
from tidelog.broker.loop.timers import Timer, TimerQueue
from tidelog.broker.network.connection import Connection, guard
from tidelog.broker.network.newcomers import FailedLogins, Newcomers
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.route import Answer, Parts, Pending
from tidelog.broker.security.audit import record
from tidelog.broker.security.principal import USER, Principal
from tidelog.broker.security.sasl.authenticator import PASS_ON, Identity, Outcome, SaslAuthenticator, State, throw
from tidelog.broker.security.sasl.errors import AuthenticationFailedError, InvalidTokenError
from tidelog.broker.security.sasl.listener import SaslListener
from tidelog.broker.security.sasl.mechanism import Evaluation
from tidelog.broker.security.sasl.scram import TokenCredentials

logger = logging.getLogger(__name__)

REAUTHENTICATION_PAUSE_MS = 1_000
_SASL_HANDSHAKE = b"\x00\x11"
_METRIC = "kafka_server_socket"


class Authentication:
    """The listeners of a broker that authenticate, and the shared parts of their connections' gates."""

    def __init__(self, broker: Broker, names: Iterable[str]) -> None:
        """Raises ConfigError."""
        config, credentials = broker.config, ScramCredentials(broker.controller)
        tokens = find_tokens(broker)
        self._metrics = broker.metrics
        self._loop = broker.loop
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="sasl")  # no thread before its first work
        texts = config.listener_texts()
        self._listeners = {
            name: SaslListener(name, texts, credentials.get, tokens, credentials.usual_iterations) for name in names
        }
        self.timers = broker.timers
        self.newcomers = Newcomers(
            lambda: config.get_int("max.unauthenticated.connections"),
            lambda: config.get_int("max.unauthenticated.connections.per.ip"),
        )
        self.failed_logins = FailedLogins(
            lambda: config.get_int("failed.authentication.rate"), broker.timers.monotonic_ms
        )

    def watch(self, connection: Connection) -> None:
        """Have a new connection authenticate first, if its listener asks for it."""
        listener = self._listeners.get(connection.context.listener_name)
        if listener is not None:
            Gate(self, connection, listener)

    def begin(self) -> None:
        """Begin what listeners do in threads of their own."""
        for listener in self._listeners.values():
            listener.begin()

    def close(self) -> None:
        """End the threads of listeners, and the one that evaluates tokens."""
        for listener in self._listeners.values():
            listener.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def evaluate(self, work: Evaluation) -> Deferred[Evaluation]:
        """Do a token's work in a thread, one token at a time: other connections need the processor, too."""
        return in_thread(self._loop, self._executor, partial(carry_out, work), self.timers.turns)

    def count(self, event: str) -> None:
        """Count an event, by Kafka's name."""
        self._metrics.counter(f"{_METRIC}_{event}_total").count += 1


def carry_out(work: Evaluation) -> Evaluation:
    """Do the work, and return it as done. Any thread."""
    try:
        reply = work()
    except (AuthenticationFailedError, InvalidTokenError) as error:
        return partial(throw, error)
    return lambda: reply


def find_tokens(broker: Broker) -> TokenCredentials:
    """Return the look-up of delegation tokens, which are built with the first login that shows one."""
    return lambda token_id, mechanism: broker.services.tokens.get().credential(token_id, mechanism)


class Gate:
    """The gate of one connection."""

    __slots__ = (
        "_connection",
        "_exchange",
        "_expires_ms",
        "_forward",
        "_identity",
        "_keeper",
        "_listener",
        "_next_handshake_ms",
        "_timer",
        "host",
    )

    def __init__(self, keeper: Authentication, connection: Connection, listener: SaslListener) -> None:
        self.host = connection.context.client_host
        self._keeper = keeper
        self._connection = connection
        self._listener = listener
        self._forward = connection.dispatch
        self._exchange: SaslAuthenticator | None = listener.authenticate()
        self._identity: Identity | None = None
        self._expires_ms = inf
        self._next_handshake_ms = 0.0
        self._timer: Timer = keeper.timers.schedule(listener.limits.timeout_ms, self._time_out)
        connection.context.on_close = self._closed
        guard(connection, self.dispatch, listener.limits.max_receive_bytes)
        keeper.newcomers.add(self)

    def dispatch(self, context: RequestContext, frame: memoryview) -> Answer:
        """Answer one request, or let the broker do so. Raises InvalidRequestError, CloseConnectionError."""
        exchange = self._exchange
        if exchange is None:
            if frame[:2] != _SASL_HANDSHAKE:
                if self._expires_ms is not inf and self._keeper.timers.monotonic_ms() >= self._expires_ms:
                    self._keeper.count("expired_connections_killed")
                    raise CloseConnectionError("its session has expired, and it did not authenticate again")
                return self._forward(context, frame)
            exchange = self._begin_again()
            if exchange is None:
                return self._forward(context, frame)
        outcome = exchange.receive(frame)
        if outcome is PASS_ON:
            return self._forward(context, frame)
        if outcome.work is not None:
            return Evaluating(self._keeper.evaluate(outcome.work), partial(self._conclude, exchange))
        return self._settle(exchange, outcome)

    def _conclude(self, exchange: SaslAuthenticator, evaluation: Evaluation) -> Answer:
        """Answer a token that was evaluated in a thread."""
        return self._settle(exchange, exchange.conclude(evaluation))

    def _settle(self, exchange: SaslAuthenticator, outcome: Outcome) -> Answer:
        """Answer a frame of the exchange, and do what follows from it."""
        if outcome.failure is not None:
            return self._refuse(exchange, outcome)
        if exchange.state is State.COMPLETE:
            self._complete(exchange)
        return outcome.frame

    def _begin_again(self) -> SaslAuthenticator | None:
        """Begin a re-authentication, unless the last one began a moment ago."""
        now = self._keeper.timers.monotonic_ms()
        if now < self._next_handshake_ms:
            return None
        self._next_handshake_ms = now + REAUTHENTICATION_PAUSE_MS
        self._exchange = self._listener.authenticate(self._identity)
        return self._exchange

    def _complete(self, exchange: SaslAuthenticator) -> None:
        """Let the client in: its identity is proved."""
        identity = exchange.identity
        assert identity is not None
        is_first, self._identity, self._exchange = self._identity is None, identity, None
        lifetime_ms = exchange.lifetime_ms
        self._expires_ms = self._keeper.timers.monotonic_ms() + lifetime_ms if lifetime_ms > 0 else inf
        self._connection.context.token_authenticated = identity.is_by_token
        if is_first:
            self._enter(identity)
        self._note("login" if is_first else "reauthentication", exchange)

    def _enter(self, identity: Identity) -> None:
        """Let the connection in."""
        self._left()
        context = self._connection.context
        context.on_close = None
        context.principal = Principal(USER, identity.user)
        guard(self._connection, self.dispatch)

    def _refuse(self, exchange: SaslAuthenticator, outcome: Outcome) -> Answer:
        """Answer a failure, later."""
        self._note("login" if self._identity is None else "reauthentication", exchange, outcome.failure)
        delay_ms = self._keeper.failed_logins.delay_ms(self.host, self._listener.limits.failed_delay_ms)
        return Refusal(self._keeper.timers, delay_ms, outcome.frame, self._connection)

    def _note(self, event: str, exchange: SaslAuthenticator, failure: str | None = None) -> None:
        kind = "authentication" if event == "login" else event
        self._keeper.count(f"{'successful' if failure is None else 'failed'}_{kind}")
        record(
            event if failure is None else f"{event} failed",
            failure,
            listener=self._listener.name,
            address=self.host,
            mechanism=exchange.mechanism,
            user=exchange.claimed,
        )

    def _closed(self) -> None:
        """Note a failed login of a client that left at a refusal: the connection closed before it came in."""
        exchange = self._exchange
        if exchange is not None and exchange.refusal is not None and exchange.state is not State.FAILED:
            self._note("login", exchange, exchange.refusal)
        self._left()

    def _left(self) -> None:
        """Stop waiting for a newcomer: the connection closed, or came in."""
        self._timer.cancel()
        self._keeper.newcomers.drop(self)

    def _time_out(self) -> None:
        self._close(f"it did not authenticate within {self._listener.limits.timeout_ms} ms")

    def give_way(self) -> None:
        """Close: another connection needs the room."""
        self._close("too many connections are not authenticated yet")

    def _close(self, reason: str) -> None:
        logger.info("closing the connection of %s: %s", self.host, reason)
        self._connection.close()


class Evaluating(Pending):
    """The answer to a token that a thread works on; ``conclude`` builds it from the evaluation."""

    __slots__ = ("_conclude", "_evaluated", "_refusal")

    def __init__(self, evaluated: Deferred[Evaluation], conclude: Callable[[Evaluation], Answer]) -> None:
        self._evaluated = evaluated
        self._conclude = conclude
        self._refusal: Pending | None = None

    def on_answer(self, callback: Callable[[bytes | Parts | None], None]) -> None:
        self._evaluated.on_done(lambda evaluated: self._say(evaluated, callback), lambda _: callback(None))

    def _say(self, evaluated: Deferred[Evaluation], callback: Callable[[bytes | Parts | None], None]) -> None:
        answer = self._conclude(evaluated.result()) if evaluated.has_value else None
        if isinstance(answer, Pending):
            self._refusal = answer
            answer.on_answer(callback)
        else:
            callback(answer)

    def abandon(self) -> None:
        self._evaluated.abandon()
        if self._refusal is not None:
            self._refusal.abandon()

    def hurry(self) -> None:
        """Do nothing: the next frame is handled for the user that this one proves."""


class Refusal(Pending):
    """The answer to a failed authentication: it comes late, and then the connection closes."""

    __slots__ = ("_connection", "_delay_ms", "_frame", "_timer", "_timers")

    def __init__(self, timers: TimerQueue, delay_ms: float, frame: bytes | None, connection: Connection) -> None:
        self._timers = timers
        self._delay_ms = delay_ms
        self._frame = frame
        self._connection = connection
        self._timer: Timer | None = None

    def on_answer(self, callback: Callable[[bytes | Parts | None], None]) -> None:
        self._timer = self._timers.schedule(self._delay_ms, partial(self._say, callback))

    def _say(self, callback: Callable[[bytes | Parts | None], None]) -> None:
        callback(self._frame or b"")
        self._connection.finish()

    def abandon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def hurry(self) -> None:
        """Do nothing: a refused client waits."""
