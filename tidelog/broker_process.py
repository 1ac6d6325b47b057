"""A broker in a process of its own, for tests and scripts: ``with Broker() as broker: ... broker.bootstrap``.

The process runs ``python -I`` (isolated: no PYTHON* variables, no user site, no current directory on the path) and
without KAFKA_* variables, so that the caller's environment does not change the broker. Unless they are given, it gets a
free port on 127.0.0.1, and a data directory of its own, which is removed when the broker stops. It stops when its
standard input closes, so it does not outlive a parent process that is killed. Its configuration is in a file that only
the owner can read, because command lines are public, and a configuration may have passwords.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

from tidelog.laboratory import LABORATORY_DEFAULTS, Laboratory
from tidelog.private_files import write_properties

if TYPE_CHECKING:
    from tidelog.broker_security import SecuredBroker, Security

READY_PREFIX = "tidelog ready on "
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
# Defaults for tests, such as groups that form at once. Keys in ``config`` override them.
TEST_DEFAULTS = {"group.initial.rebalance.delay.ms": "0", "admin.listener": "127.0.0.1:0"}
_PACKAGE_ROOT = str(Path(__file__).absolute().parent.parent)


class BrokerProcessError(Exception):
    """The broker did not start or did not stop: then the message has its log. Or a configuration key is unknown, a
    package is missing, or a call does not fit the state of the broker."""


@contextlib.contextmanager
def reserve_port(port: int) -> Iterator[None]:
    """Keep a port of 127.0.0.1 inside the block: the system gives it to no outgoing connection, but a broker can listen
    on it. Without effect if the port is taken.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            reserved.bind(("127.0.0.1", port))
        yield


class Broker:
    """One broker process. Not thread-safe; start and stop it from one thread."""

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        security: Security | None = None,
        lab: bool = False,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """``config`` has keys as in server.properties; a given ``data_dir`` is kept, otherwise one is created and
        removed.

        With ``security`` the broker has its TLS, users and ACLs; ``clients`` has the settings of clients. With
        ``lab`` the property ``lab`` has controls for tests (clock, faults, snapshots), and nothing is synced to the
        disk.
        """
        self._texts = {**TEST_DEFAULTS, **(LABORATORY_DEFAULTS if lab else {}), **as_texts(config or {})}
        self._has_laboratory = lab
        self._laboratory: Laboratory | None = None
        self._owns_directory = data_dir is None
        self.data_dir: Path | None = None if data_dir is None else Path(data_dir)
        self._port = port
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._bootstrap: str | None = None
        self._security = security
        self._secured: SecuredBroker | None = None
        self._private_directory: tempfile.TemporaryDirectory[str] | None = None
        self._is_restarting = False

    @property
    def clients(self) -> SecuredBroker:
        """The settings with which clients connect to a secured broker; known while it runs."""
        if self._secured is None or self._bootstrap is None:
            raise BrokerProcessError("the broker is not running, or has no security")
        return self._secured

    @property
    def lab(self) -> Laboratory:
        """The laboratory controls; available while the broker runs, with ``lab=True``."""
        if self._laboratory is None:
            raise BrokerProcessError("the broker is not running, or has no laboratory: Broker(lab=True)")
        return self._laboratory

    @property
    def bootstrap(self) -> str:
        """``HOST:PORT`` for clients; known while the broker runs."""
        if self._bootstrap is None:
            raise BrokerProcessError("the broker is not running")
        return self._bootstrap

    @property
    def pid(self) -> int:
        """The process id; known while the broker runs."""
        if self._process is None:
            raise BrokerProcessError("the broker is not running")
        return self._process.pid

    def start(self) -> Self:
        """Start and wait until the broker answers, then create the users and ACLs of ``security``.

        Raises BrokerProcessError, also if it runs already; ClientError or KafkaError if users or ACLs cannot be
        created; OSError or UnicodeEncodeError if its files cannot be written.
        """
        if self._process is not None:
            raise BrokerProcessError("the broker is running")
        refuse_unknown_keys(self._texts)
        try:
            self._make_files()
            self._start_process()
            self._bootstrap = self._wait_until_ready()
            if self._secured is None:
                self._remove_private()  # the broker has read its file; if this process is killed, no file is left
            else:
                self._secured.prepare(self._bootstrap)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> int:
        """Stop cleanly, wait and return the exit code; 0 when the broker does not run. Raises BrokerProcessError."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Kill the broker (SIGKILL), as in a crash; a ``data_dir`` of the caller stays."""
        return self._end(signal.SIGKILL)

    def restart(self) -> Self:
        """Stop cleanly, then start on the same directory and port."""
        port = int(self.bootstrap.rpartition(":")[2])
        self._is_restarting = True
        try:
            self.stop()
        finally:
            self._is_restarting = False
        self._port = port
        with reserve_port(port):
            return self.start()

    def log_text(self) -> str:
        """Read the standard error of the broker that runs; an empty text if none does."""
        if self._log is None:
            return ""
        descriptor = self._log.fileno()  # pread, because this descriptor shares its position with the broker's
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _make_files(self) -> None:
        """Make the directories that are missing, the certificate, and the file of the log."""
        if self.data_dir is None:
            self.data_dir = Path(tempfile.mkdtemp(prefix="tidelog-"))
        if self._private_directory is None:
            self._private_directory = tempfile.TemporaryDirectory(prefix="tidelog-private-")
        if self._security is not None and self._secured is None:
            self._secured = self._secure(self._security, Path(self._private_directory.name))
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop)

    def _start_process(self) -> None:
        """Start the process; with a laboratory it gets one end of a socket pair."""
        command, passed = self._command(), list[int]()
        with contextlib.ExitStack() as opened:
            if self._has_laboratory:
                ours, theirs = socket.socketpair()
                opened.enter_context(theirs)
                self._laboratory = Laboratory(ours)
                passed.append(theirs.fileno())
                command += ["--laboratory", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=clean_environment(),
                pass_fds=passed,
            )

    def _command(self) -> list[str]:
        assert self.data_dir is not None
        start = f"import sys; sys.path.insert(0, {_PACKAGE_ROOT!r}); from tidelog.cli import main; sys.exit(main())"
        command = [sys.executable, "-I", "-c", start, "serve", "--until-stdin-closes", "--host", "127.0.0.1"]
        command += ["--port", str(self._port), "--data-dir", str(self.data_dir)]
        return [*command, "--config", str(self._write_config())]

    def _write_config(self) -> Path:
        assert self._private_directory is not None
        path = Path(self._private_directory.name, "server.properties")
        write_properties(path, self._texts if self._secured is None else self._secured.texts(self._texts))
        return path

    def _secure(self, security: Security, directory: Path) -> SecuredBroker:
        """Create the certificate and the settings of clients. Raises BrokerProcessError."""
        from tidelog.broker_security import SecuredBroker

        try:
            return SecuredBroker(security, directory)
        except ImportError as error:
            raise BrokerProcessError("a certificate needs `pip install tidelog[tls]`") from error

    def _wait_until_ready(self) -> str:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        deadline = time.monotonic() + self._start_timeout_s
        poller = select.poll()  # not select(): this process may have more than 1,024 descriptors
        poller.register(process.stdout, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise BrokerProcessError(f"the broker was not ready after {self._start_timeout_s} s\n{self.log_text()}")
            part = os.read(process.stdout.fileno(), 4096)
            if not part:
                raise BrokerProcessError(f"the broker ended with code {process.wait()}\n{self.log_text()}")
            line += part
        ready, _, _console = line.decode().partition("\n")
        return ready.removeprefix(READY_PREFIX)

    def _end(self, number: signal.Signals) -> int:
        process, self._process, self._bootstrap = self._process, None, None
        if process is None:
            self._clean_up()
            return 0
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerProcessError(f"the broker did not stop in {STOP_TIMEOUT_S} s\n{self.log_text()}") from None
        finally:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            self._clean_up()
        return code

    def _clean_up(self) -> None:
        if self._laboratory is not None:
            self._laboratory.close()
            self._laboratory = None
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._is_restarting:
            return
        if self._owns_directory and self.data_dir is not None:
            shutil.rmtree(self.data_dir, ignore_errors=True)
            self.data_dir = None
        self._remove_private()

    def _remove_private(self) -> None:
        if self._private_directory is not None:
            self._private_directory.cleanup()
            self._private_directory = self._secured = None


def clean_environment() -> dict[str, str]:
    """Copy the caller's environment without the variables that would configure the broker."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KAFKA_", "PYTHON")) and name not in ("CLUSTER_ID", "TIDELOG_CONFIG_FILES")
    }


def as_texts(config: Mapping[str, object]) -> dict[str, str]:
    """Format configuration values as in server.properties."""
    return {key: as_text(value) for key, value in config.items()}


def as_text(value: object) -> str:
    """Format a configuration value as in server.properties."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def refuse_unknown_keys(texts: Mapping[str, str]) -> None:
    """Raise BrokerProcessError for an unknown key, which a broker would ignore in its file."""
    from tidelog.broker.config.broker_config import is_known, nearest_key

    for key in texts:
        if not is_known(key):
            raise BrokerProcessError(f"{key}: unknown configuration key{nearest_key(key)}")
