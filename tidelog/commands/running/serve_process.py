"""The process of ``tidelog serve``: one broker, until SIGTERM or SIGINT.

Standard output has these lines; logs go to standard error:

    laboratory http://HOST:PORT    first, with --laboratory-listener
    tidelog ready on HOST:PORT     once the broker answers
    console http://HOST:PORT       then, if it has an admin interface; https with TLS

Signals are handled from the start, because process 1 of a container has no default action for SIGTERM. A signal before
the broker runs ends the process, a later one stops it cleanly. The exit code is 0 in both cases.

Exit codes: 0 stopped by a signal; 1 the broker could not start (port taken, directory in use), or could not go on
later; 2 wrong configuration.

If standard input, output or error is closed at the start, /dev/null is opened in its place. Otherwise a segment or a
socket would get its descriptor number, and log lines would be written to it.

Imports here are few on purpose, so that a broker starts quickly and stays small.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.commands.frame.exit_codes import EXIT_FAILED, EXIT_USAGE

if TYPE_CHECKING:
    import socket
    from asyncio import AbstractEventLoop

    from tidelog.broker.config.broker_config import BrokerConfig, Endpoint
    from tidelog.broker.laboratory.server import LaboratoryServer
    from tidelog.broker.server import Server
    from tidelog.commands.running.service_manager import ServiceManager

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG4J_LEVELS = {"all": "debug", "trace": "debug", "warn": "warning", "fatal": "error", "off": "error"}
STANDARD_ERROR = 2
_MAX_DIGITS = 19
"""Largest number of digits of an option's number; ``int`` raises ValueError for more than 4,300 of them."""
STARTING_THRESHOLD = 100_000
"""Threshold of the garbage collector during a start, whose objects nearly all live as long as the process."""


def environment_level() -> str:
    """Translate the log level of Apache's image into this command's names."""
    level = os.environ.get("KAFKA_LOG4J_ROOT_LOGLEVEL", "").lower()
    return LOG4J_LEVELS.get(level, level if level in LOG_LEVELS else "info")


class ServeWords(NamedTuple):
    """The options of ``tidelog serve``; None for those that are not given."""

    data_dir: str | None = None
    host: str | None = None
    port: int | None = None
    config_file: str | None = None
    overrides: tuple[str, ...] = ()
    until_stdin_closes: bool = False
    strict: bool = False
    log_level: str | None = None
    laboratory: int | None = None
    laboratory_listener: str | None = None

    @property
    def has_laboratory(self) -> bool:
        """Return whether tests control the broker."""
        return self.laboratory is not None or self.laboratory_listener is not None


VALUES = {
    "--data-dir": "data_dir",
    "--host": "host",
    "--port": "port",
    "--config": "config_file",
    "--override": "overrides",
    "--log-level": "log_level",
    "--laboratory": "laboratory",
    "--laboratory-listener": "laboratory_listener",
}
NUMBERS = ("port", "laboratory")
FLAGS = {"--until-stdin-closes": "until_stdin_closes", "--strict": "strict"}


def read_words(words: Sequence[str]) -> ServeWords | None:
    """Parse the options without Click; None if one is wrong or unknown here. Click then parses them, and reports the
    error or shows the help.

    Click would take 2 MB of an idle broker's memory (VmRSS, docs/internals/performance.md).
    """
    found: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        name, has_value, value = word.partition("=")
        if name in VALUES:
            text = value if has_value else next(rest, None)
            if text is None or not _put(found, VALUES[name], text):
                return None
        elif word in FLAGS:
            found[FLAGS[word]] = True
        else:
            return None
    return ServeWords(**found)


def _put(found: dict[str, Any], name: str, text: str) -> bool:
    """Add an option's value to ``found``; returns whether the value is valid."""
    if name == "overrides":
        found[name] = (*found.get(name, ()), text)
    elif name in NUMBERS:
        if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
            return False
        found[name] = int(text)
    elif name == "log_level" and text not in LOG_LEVELS:
        return False
    else:
        found[name] = text
    return True


def run(options: ServeWords) -> int:
    """Run a broker. Returns the exit code."""
    gc.set_threshold(STARTING_THRESHOLD, *gc.get_threshold()[1:])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop_before_start)
    signal.signal(signal.SIGHUP, read_stores_later)
    fill_standard_descriptors()
    configure_logging(options.log_level or environment_level())
    if os.environ.get("TIDELOG_DEBUG") == "1":
        from tidelog.broker.loop.thread_rule import install

        install()
    if options.strict:
        from tidelog.commands.running.core_dumps import forbid_core_dumps

        forbid_core_dumps()
    from tidelog.broker.config.broker_config import BrokerConfig, ServeOptions
    from tidelog.protocol.config_def import ConfigError

    try:
        if options.until_stdin_closes and not can_close(0):
            raise ConfigError("--until-stdin-closes: expected a pipe as standard input, not a file or /dev/null")
        command_line = ServeOptions(options.data_dir, options.host, options.port)
        overrides = (*laboratory_overrides(options), *options.overrides)
        config = BrokerConfig.load(options.config_file, os.environ, overrides, command_line)
        config.log_unknown_keys()
        if options.strict:
            refuse_weaknesses(config)
        try:
            return serve(config, options)
        except ConfigError as error:  # of a value in the configuration, or of one that the admin API has stored
            raise ConfigError(config.resolved.hide(error.message)) from None
    except ConfigError as error:
        print(f"tidelog serve: {error}", file=sys.stderr)
        return EXIT_USAGE


def refuse_weaknesses(config: BrokerConfig) -> None:
    """Raise ConfigError for the first weakness of the listeners or the HTTP interfaces."""
    from tidelog.broker.security.policy import find_weaknesses
    from tidelog.protocol.config_def import ConfigError

    for finding in find_weaknesses(config):
        raise ConfigError(f"--strict: {finding}")


def can_close(descriptor: int) -> bool:
    """Return whether the end of a descriptor's input can be waited for: it is a pipe, a socket or a terminal."""
    import stat

    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


def stop_before_start(number: int, frame: object) -> None:
    """End the process on a signal before the event loop handles signals."""
    raise SystemExit(0)


def read_stores_later(number: int, frame: object) -> None:
    """Ignore SIGHUP before the broker runs: the start reads the stores of certificates in any case."""


def fill_standard_descriptors() -> None:
    """Open /dev/null for each closed descriptor of standard input, output and error."""
    number = 0
    while number <= STANDARD_ERROR:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)


def configure_logging(level: str) -> None:
    """Set up logging to standard error, one line per message."""
    import logging

    from tidelog.broker.security.log_lines import LineFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def serve(config: BrokerConfig, options: ServeWords) -> int:
    """Run the broker until a signal. Returns the exit code."""
    import asyncio

    import uvloop

    from tidelog.broker.errors import StartError

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_until_asked_to_stop(config, options))
    except (StartError, OSError) as error:
        print(f"tidelog serve: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0


async def serve_until_asked_to_stop(config: BrokerConfig, options: ServeWords) -> None:
    """Start, print the ready line, wait for a signal (or the end of standard input), and stop."""
    import asyncio
    import logging

    from tidelog.broker.errors import StartError
    from tidelog.broker.server import Server

    logger = logging.getLogger(__name__)
    loop = asyncio.get_running_loop()
    stop_asked = asyncio.Event()

    def stop(reason: str) -> None:
        if not stop_asked.is_set():
            logger.info("the broker stops: %s", reason)
            stop_asked.set()
            server.abandon_start()

    if options.has_laboratory:
        server: Server | LaboratoryServer = open_laboratory(config, options, on_failure=stop_asked.set)
    else:
        server = Server(config, on_failure=stop_asked.set)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    if options.until_stdin_closes:
        stop_at_end_of_input(loop, 0, lambda: stop("standard input was closed"))
    try:
        await server.start()
    except (StartError, OSError) as error:
        await server.stop()  # the logs are open if a port is taken, or if a member waits to be unfenced
        if isinstance(error, StartError) and stop_asked.is_set() and server.failure is None:
            return  # a signal ended the start, for example of a member that waits for its cluster
        raise
    loop.add_signal_handler(signal.SIGHUP, server.reload_stores)
    await serve_clients(server, stop_asked.wait())
    if server.failure is not None:
        raise StartError(server.failure)
    logger.info("the broker has stopped")


def stop_at_end_of_input(loop: AbstractEventLoop, descriptor: int, stop: Callable[[], object]) -> None:
    """Call ``stop`` once when the input of a descriptor ends."""

    def read() -> None:
        try:
            is_open = bool(os.read(descriptor, 1024))
        except BlockingIOError:  # another process has read what was there
            return
        except OSError:  # a terminal that was closed
            is_open = False
        if not is_open:
            loop.remove_reader(descriptor)  # otherwise the loop would call this function in each turn of a long stop
            stop()

    loop.add_reader(descriptor, read)


async def serve_clients(server: Server | LaboratoryServer, stop_asked: Awaitable[object]) -> None:
    """Report that the broker is ready: on standard output, in the log, to the service manager. Stop it after
    ``stop_asked``."""
    import asyncio
    import logging

    manager = find_service_manager(asyncio.get_running_loop())
    try:
        # Kafka's own text: Testcontainers' module for Python waits for its first half, those for Java and Go for the
        # second.
        logging.getLogger(__name__).info("Kafka Server started: Transitioning from RECOVERY to RUNNING")
        announce(server)
        announce_console(server.broker.config)
        if manager is not None:
            manager.send_ready()
        await stop_asked
    finally:
        if manager is not None:
            manager.send_stopping()
        await server.stop()
        if manager is not None:
            manager.close()


def laboratory_overrides(options: ServeWords) -> list[str]:
    """List the overrides of a broker for tests that is started without ``tidelog.Broker``."""
    if options.laboratory_listener is None:
        return []
    from tidelog.broker_process import TEST_DEFAULTS
    from tidelog.laboratory import LABORATORY_DEFAULTS

    return [f"{key}={text}" for key, text in (TEST_DEFAULTS | LABORATORY_DEFAULTS).items()]


def open_laboratory(config: BrokerConfig, options: ServeWords, on_failure: Callable[[], object]) -> LaboratoryServer:
    """Build a broker with laboratory controls, through a socket or over HTTP. Raises ConfigError, OSError."""
    from functools import partial

    from tidelog.broker.laboratory.control import Control
    from tidelog.broker.laboratory.server import LaboratoryServer

    laboratory = LaboratoryServer(config, on_failure=on_failure)
    control = Control(laboratory)
    if options.laboratory is not None:
        laboratory.add_control(partial(control.serve, open_control(options.laboratory)))
    if options.laboratory_listener is not None:
        from tidelog.broker.admin.guard import Hosts
        from tidelog.broker.laboratory.http import open_listener, serve_http

        listener = open_listener(options.laboratory_listener)
        host, port = listener.getsockname()[:2]
        laboratory.add_control(partial(serve_http, control, Hosts(config), listener))
        print(f"laboratory http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
    return laboratory


def open_control(descriptor: int) -> socket.socket:
    """Return the socket of a descriptor that the starting process passed. Raises ConfigError."""
    import socket

    from tidelog.protocol.config_def import ConfigError

    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        raise ConfigError(f"--laboratory {descriptor}: expected the descriptor of a socket") from None


def find_service_manager(loop: AbstractEventLoop) -> ServiceManager | None:
    """Return the service manager that expects messages of this process; None if there is none."""
    if not os.environ.get("NOTIFY_SOCKET"):
        return None
    from tidelog.commands.running.service_manager import ServiceManager

    return ServiceManager(os.environ, loop)


def announce(server: Server | LaboratoryServer) -> None:
    """Print the ready line, and end the start's settings of the garbage collector. A closed standard output does not
    stop the broker."""
    from tidelog.broker.loop.garbage import SERVING_THRESHOLDS

    endpoint: Endpoint = server.endpoints[0]
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host or "0.0.0.0"
    try:
        print(f"tidelog ready on {host}:{endpoint.port}", flush=True)
    except OSError:
        sys.stdout = sys.stderr
    # All objects so far live as long as the process, so later collections can skip them. They are not collected first:
    # a start leaves some twenty objects in cycles, and a collection takes 20 ms with 10,000 partitions.
    gc.freeze()
    gc.set_threshold(*SERVING_THRESHOLDS)


def announce_console(config: BrokerConfig) -> None:
    """Print the address of the console, which is that of the admin interface, if there is one."""
    from tidelog.broker.admin.login.access import tls_texts
    from tidelog.broker.config.keys.admin import ADMIN_LISTENER

    address = config.get_str(ADMIN_LISTENER)
    if not address:
        return
    try:
        print(f"console {'https' if tls_texts(config) else 'http'}://{address}", flush=True)
    except OSError:
        sys.stdout = sys.stderr
