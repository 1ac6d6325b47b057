"""TLS listeners of a broker: each with its present context, and the handshakes of all of them.

Store files are checked for changes every ``ssl.store.refresh.ms``, and read again at SIGHUP in any case. Clients set
other stores by IncrementalAlterConfigs or AlterConfigs. A lone node refuses stores that ``check`` finds unusable; in a
cluster the active controller answers these requests without that check. For an HTTP interface's stores there is only
the check of files. A store that cannot be used is logged, and the old one stays. A certificate that expires soon is
logged once a day.
"""

from __future__ import annotations

import logging
import socket
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from time import time
from typing import Any

from tidelog.broker.config.keys.security import STORE_KEYS, listener_values
from tidelog.broker.loop.timers import Timer, TimerQueue
from tidelog.broker.metrics.registry import Sample
from tidelog.broker.security.audit import record
from tidelog.broker.security.tls.handshakes import Handshakes, OnReady
from tidelog.broker.security.tls.listener import StoreContents, TlsListener
from tidelog.protocol.config_def import ConfigError

logger = logging.getLogger(__name__)

DAY_S = 86_400
WARNING_DAYS = 30
EXPIRY_METRIC = "tidelog_tls_certificate_expiry_seconds"


class TlsListeners:
    """All listeners that encrypt. Loop thread only."""

    def __init__(
        self,
        names: Iterable[str],
        texts: Mapping[str, str],
        loop: AbstractEventLoop,
        timers: TimerQueue,
        executor: Executor,
        now_s: Callable[[], float] = time,
    ) -> None:
        """``now_s`` returns the time of the wall clock. Raises ConfigError, OSError."""
        self._loop = loop
        self._timers = timers
        self._executor = executor
        self._now_s = now_s
        self._listeners = {name: TlsListener(name, texts) for name in names}
        self._wanted = {name: listener.values for name, listener in self._listeners.items()}
        self._reading: set[str] = set()
        self._asked_meanwhile: dict[str, bool] = {}
        """Listeners whose stores are to be read again after the reading under way; True: even if nothing has
        changed.
        """
        self._timers_of_checks: dict[str, Timer] = {}
        self.handshakes = Handshakes(loop, timers)
        for listener in self._listeners.values():
            self._schedule_check(listener)
        self._warn_of_ends()

    def begin(
        self, sock: socket.socket, name: str, host: str, *, on_ready: OnReady, on_failed: Callable[[], None]
    ) -> None:
        """Take over a new connection of a listener. ``on_ready`` gets its encrypted socket; if the handshake fails, the
        connection is closed and ``on_failed`` is called.
        """
        self.handshakes.begin(sock, self._listeners[name], host, on_ready=on_ready, on_failed=on_failed)

    def listener(self, name: str) -> TlsListener:
        """Return the listener of this name."""
        return self._listeners[name]

    def reload(self) -> None:
        """Read all stores again, even if nothing has changed."""
        for listener in self._listeners.values():
            self._read(listener, even_if_unchanged=True)

    def check(self, texts: Mapping[str, str], names: Collection[str]) -> Callable[[], None]:
        """Return a function, to be run in a thread, that checks the stores which these keys set for the listeners with
        these names in lower case. Both raise ConfigError, and the function OSError.
        """
        wanted = [
            (listener, listener_values(texts, name))
            for name, listener in self._listeners.items()
            if name.lower() in names
        ]

        def read_all() -> None:
            for listener, values in wanted:
                listener.prepare_again(values, even_if_unchanged=True)

        return read_all

    def take_over(self, texts: Mapping[str, str]) -> None:
        """Use the stores of these keys from now on; a listener whose store cannot be used keeps its old one."""
        for name, listener in self._listeners.items():
            try:
                self._wanted[name] = {**listener.values, **stores_of(listener_values(texts, name))}
            except ConfigError as error:
                logger.error("listener %s keeps its certificate: %s", name, error)
                continue
            self._read(listener, even_if_unchanged=False)

    def samples(self) -> Iterator[Sample]:
        """Yield the expiry time of each listener's certificate, in seconds since 1970."""
        for name, listener in self._listeners.items():
            yield Sample(EXPIRY_METRIC, "gauge", {"listener": name}, listener.prepared.identity.expires_s)

    def close(self) -> None:
        """End the handshakes, and the checks of store files."""
        self._timer_of_warnings.cancel()
        for timer in self._timers_of_checks.values():
            timer.cancel()
        self.handshakes.close()

    def _schedule_check(self, listener: TlsListener) -> None:
        interval_ms = listener.values["ssl.store.refresh.ms"]
        if interval_ms:
            check = partial(self._check_files, listener)
            self._timers_of_checks[listener.name] = self._timers.schedule(interval_ms, check)

    def _check_files(self, listener: TlsListener) -> None:
        self._read(listener, even_if_unchanged=False)
        self._schedule_check(listener)

    def _read(self, listener: TlsListener, *, even_if_unchanged: bool) -> None:
        """Read a listener's stores in a thread, one reading at a time."""
        if listener.name in self._reading:
            self._asked_meanwhile[listener.name] = even_if_unchanged or self._asked_meanwhile.get(listener.name, False)
            return
        work = partial(listener.prepare_again, self._wanted[listener.name], even_if_unchanged=even_if_unchanged)
        try:
            future = self._loop.run_in_executor(self._executor, work)
        except (MemoryError, RuntimeError) as error:  # no thread can be started; the next check tries again
            logger.error("listener %s keeps its certificate: %s", listener.name, error)
            return
        self._reading.add(listener.name)
        future.add_done_callback(partial(self._take, listener))

    def _take(self, listener: TlsListener, future: Future[StoreContents | None]) -> None:
        self._reading.discard(listener.name)
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, ConfigError):
            logger.error("listener %s keeps its certificate: %s", listener.name, error)
        elif error is not None:
            logger.error("listener %s keeps its certificate", listener.name, exc_info=error)
        elif (found := future.result()) is not None:
            self._replace(listener, found)
        if listener.name in self._asked_meanwhile:
            self._read(listener, even_if_unchanged=self._asked_meanwhile.pop(listener.name))

    def _replace(self, listener: TlsListener, found: StoreContents) -> None:
        """Use the newly read stores for new connections."""
        is_same = found.identity == listener.prepared.identity
        listener.prepared = found
        if is_same:
            logger.info("listener %s has read its stores again", listener.name)
            return
        logger.info("listener %s has a new certificate: %s", listener.name, found.identity.subject)
        record("certificate changed", listener=listener.name, subject=found.identity.subject)
        self._warn_of_end(listener)

    def _warn_of_ends(self) -> None:
        for listener in self._listeners.values():
            self._warn_of_end(listener)
        self._timer_of_warnings = self._timers.schedule(DAY_S * 1000, self._warn_of_ends)

    def _warn_of_end(self, listener: TlsListener) -> None:
        left_s = listener.prepared.identity.expires_s - self._now_s()
        if left_s < 0:
            logger.warning("the certificate of listener %s has expired: clients refuse it", listener.name)
        elif left_s < WARNING_DAYS * DAY_S:
            logger.warning("the certificate of listener %s ends in %d days", listener.name, left_s // DAY_S)


def stores_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Select the values of a listener's store keys, which may change while the broker runs."""
    return {key: values[key] for key in STORE_KEYS}
