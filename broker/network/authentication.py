"""Gate of a connection that must authenticate: it receives all frames, and passes them to the broker after the login.

    before    frames go to the exchange (``tidelog.broker.security.sasl.authenticator``), ApiVersions to the broker
    waiting   a token (the bytes of a SASL message) is evaluated in a thread; the client's next frame waits
    complete  frames go to the broker. SaslHandshake begins a re-authentication, once a second at most; past the
              session's lifetime (``connections.max.reauth.ms``, or the end of the client's token if that is sooner)
              any other request closes the connection. A SaslHandshake within that second goes to the broker, whose
              handler refuses it
    failed    the answer waits (``connection.failed.authentication.delay.ms``), then the connection closes

No other frame reaches the broker before the exchange is complete. Connections of listeners without SASL have no gate.
Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from threading import Event

from tidelog.broker.broker import Broker
from tidelog.broker.controller.clients.scram_credentials import ScramCredentials
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.threads import run_in_thread
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
"""Shortest time between two re-authentications of a connection."""
_SASL_HANDSHAKE = b"\x00\x11"
_METRIC = "kafka_server_socket"


class Authentication:
    """SASL listeners of a broker, and the parts that the gates of their connections share."""

    def __init__(self, broker: Broker, names: Iterable[str]) -> None:
        """Build the listeners called ``names``. Raises ConfigError."""
        config, credentials = broker.config, ScramCredentials(broker.controller)
        tokens = find_tokens(broker)
        self._metrics = broker.metrics
        self._loop = broker.loop
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="sasl")  # its thread starts with the first token
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
        """Put a gate before a new connection, if its listener is one with SASL."""
        listener = self._listeners.get(connection.context.listener_name)
        if listener is not None:
            Gate(self, connection, listener)

    def begin(self) -> None:
        """Start the threads of listeners, which read the keys of bearer tokens."""
        for listener in self._listeners.values():
            listener.begin()

    def close(self) -> None:
        """End the threads of listeners, and the one that evaluates tokens."""
        for listener in self._listeners.values():
            listener.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def evaluate(self, work: Evaluation) -> Deferred[Evaluation]:
        """Evaluate a token in a thread, one token at a time: other connections need the processor, too."""
        has_left = Event()
        evaluated = run_in_thread(self._loop, self._executor, partial(carry_out, work, has_left), self.timers.turns)
        evaluated.on_abandon(has_left.set)
        return evaluated

    def count(self, event: str) -> None:
        """Count an event under Kafka's name for it."""
        self._metrics.counter(f"{_METRIC}_{event}_total").count += 1


def carry_out(work: Evaluation, has_left: Event) -> Evaluation:
    """Evaluate a token, and return a function that gives the reply or raises the failure. Any thread.

    If its client ``has_left``, the token is not evaluated. Otherwise clients that connect again and again could keep
    the thread busy with tokens of connections that are gone.
    """
    if has_left.is_set():
        return partial(throw, InvalidTokenError("its client has disconnected"))
    try:
        reply = work()
    except (AuthenticationFailedError, InvalidTokenError) as error:
        return partial(throw, error)
    return lambda: reply


def find_tokens(broker: Broker) -> TokenCredentials:
    """Return the look-up of delegation tokens, whose service is built when the first client logs in with one."""
    return lambda token_id, mechanism: broker.services.tokens.get().credential(token_id, mechanism)


class Gate:
    """The gate of one connection. Its ``authentication`` has the parts that all gates share."""

    __slots__ = (
        "_authentication",
        "_connection",
        "_exchange",
        "_expires_ms",
        "_forward",
        "_identity",
        "_listener",
        "_next_handshake_ms",
        "_timer",
        "host",
    )

    def __init__(self, authentication: Authentication, connection: Connection, listener: SaslListener) -> None:
        self.host = connection.context.client_host
        self._authentication = authentication
        self._connection = connection
        self._listener = listener
        self._forward = connection.dispatch
        self._exchange: SaslAuthenticator | None = listener.authenticate()
        self._identity: Identity | None = None
        self._expires_ms = inf
        self._next_handshake_ms = 0.0
        self._timer: Timer = authentication.timers.schedule(listener.limits.timeout_ms, self._expire)
        connection.context.on_close = self._connection_closed
        guard(connection, self.dispatch, listener.limits.max_receive_bytes)
        authentication.newcomers.add(self)

    def dispatch(self, context: RequestContext, frame: memoryview) -> Answer:
        """Answer one request, or pass it to the broker. Raises InvalidRequestError, CloseConnectionError."""
        exchange = self._exchange
        if exchange is None:
            if frame[:2] != _SASL_HANDSHAKE:
                if self._expires_ms is not inf and self._authentication.timers.monotonic_ms() >= self._expires_ms:
                    self._authentication.count("expired_connections_killed")
                    raise CloseConnectionError("its session has expired, and it did not authenticate again")
                return self._forward(context, frame)
            exchange = self._begin_again()
            if exchange is None:
                return self._forward(context, frame)
        outcome = exchange.receive(frame)
        if outcome is PASS_ON:
            return self._forward(context, frame)
        if outcome.work is not None:
            return Evaluating(self._authentication.evaluate(outcome.work), partial(self._conclude, exchange))
        return self._settle(exchange, outcome)

    def _conclude(self, exchange: SaslAuthenticator, evaluation: Evaluation) -> Answer:
        """Answer a token that was evaluated in a thread."""
        return self._settle(exchange, exchange.conclude(evaluation))

    def _settle(self, exchange: SaslAuthenticator, outcome: Outcome) -> Answer:
        """Return the answer to a frame of the exchange; admit or refuse the client if it was the last one."""
        if outcome.failure is not None:
            return self._refuse(exchange, outcome)
        if exchange.state is State.COMPLETE:
            self._complete(exchange)
        return outcome.frame

    def _begin_again(self) -> SaslAuthenticator | None:
        """Begin a re-authentication, whose frames are limited like those of a login; return None if the last one began
        within REAUTHENTICATION_PAUSE_MS.
        """
        now = self._authentication.timers.monotonic_ms()
        if now < self._next_handshake_ms:
            return None
        self._next_handshake_ms = now + REAUTHENTICATION_PAUSE_MS
        self._exchange = self._listener.authenticate(self._identity)
        guard(self._connection, self.dispatch, self._listener.limits.max_receive_bytes)
        return self._exchange

    def _complete(self, exchange: SaslAuthenticator) -> None:
        """Admit the client, which has proved its identity, or renew its session."""
        identity = exchange.identity
        assert identity is not None
        is_first, self._identity, self._exchange = self._identity is None, identity, None
        lifetime_ms = exchange.lifetime_ms
        self._expires_ms = self._authentication.timers.monotonic_ms() + lifetime_ms if lifetime_ms > 0 else inf
        self._connection.context.token_authenticated = identity.is_by_token
        guard(self._connection, self.dispatch)
        if is_first:
            self._enter(identity)
        self._note("login" if is_first else "reauthentication", exchange)

    def _enter(self, identity: Identity) -> None:
        """Set the connection's user, and end the time limit of connections that are not authenticated."""
        self._stop_waiting()
        context = self._connection.context
        context.on_close = None
        context.principal = Principal(USER, identity.user)

    def _refuse(self, exchange: SaslAuthenticator, outcome: Outcome) -> Answer:
        """Return the answer to a failed authentication, which is sent after a delay."""
        self._note("login" if self._identity is None else "reauthentication", exchange, outcome.failure)
        delay_ms = self._authentication.failed_logins.delay_ms(self.host, self._listener.limits.failed_delay_ms)
        return Refusal(self._authentication.timers, delay_ms, outcome.frame, self._connection)

    def _note(self, event: str, exchange: SaslAuthenticator, failure: str | None = None) -> None:
        kind = "authentication" if event == "login" else event
        self._authentication.count(f"{'successful' if failure is None else 'failed'}_{kind}")
        record(
            event if failure is None else f"{event} failed",
            failure,
            listener=self._listener.name,
            address=self.host,
            mechanism=exchange.mechanism,
            user=exchange.claimed,
        )

    def _connection_closed(self) -> None:
        """End the login of a client that disconnects before it is admitted. Count a failure if it was refused and has
        not sent the last message of the exchange, after which ``_refuse`` counts it."""
        exchange = self._exchange
        if exchange is not None and exchange.refusal is not None and exchange.state is not State.FAILED:
            self._note("login", exchange, exchange.refusal)
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        """Stop the time limit of authentication: the connection closed, or was admitted."""
        self._timer.cancel()
        self._authentication.newcomers.drop(self)

    def _expire(self) -> None:
        self._close(f"it did not authenticate within {self._listener.limits.timeout_ms} ms")

    def give_way(self) -> None:
        """Close the connection: too many are not authenticated yet."""
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
        """Do nothing: the next frame needs the identity that this one proves."""


class Refusal(Pending):
    """The answer to a failed authentication: it is sent after a delay, and then the connection closes."""

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
