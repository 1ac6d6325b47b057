"""The keys of a token issuer: when they are read, also because of unknown key ids, and what is refused."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Certificates
from tests.support.slow_server import slow_server
from tests.support.tls import server_context
from tidelog.broker.security import timed_http
from tidelog.broker.security.sasl.oauth.key_set import (
    EARLY_PAUSE_S,
    MAX_BYTES,
    MAX_KEYS,
    KeySet,
    MalformedKeysError,
    Pace,
    fetch_file,
    fetch_url,
    file_of,
    parse,
)


class World:
    """A key set that reads ``document`` by the clock ``now``, and the number of its ``reads``. After an error it waits
    0.1 s, then twice as long each time, up to 10 s."""

    def __init__(self) -> None:
        self.now = 0.0
        self.document = b'{"keys": [1]}'
        self.reads = 0
        self.keys: KeySet[list[Any]] = KeySet(self._fetch, self._read, [], Pace(3600, 0.1, 10), now_s=lambda: self.now)

    def _fetch(self) -> bytes:
        self.reads += 1
        return self.document

    def _read(self, document: Mapping[str, Any]) -> list[Any]:
        return list(document["keys"])


def test_keys_are_read_again_after_the_refresh_interval() -> None:
    world = World()
    assert (world.keys.step(), world.keys.keys) == (3600, [1])
    world.document = b'{"keys": [2]}'
    world.now = 3599
    assert (world.keys.step(), world.keys.keys) == (1, [1])
    world.now = 3600
    assert (world.keys.step(), world.keys.keys) == (3600, [2])


def test_while_the_endpoint_fails_the_old_keys_stay_and_the_waits_grow(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.keys.step()
    world.document, world.now = b"no", 3600
    waits = []
    for _ in range(10):
        waits.append(world.keys.step())
        world.now += waits[-1]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10]
    assert world.keys.keys == [1]
    assert caplog.text.count("cannot read the keys") == 1
    world.document = b'{"keys": []}'
    assert (world.keys.step(), world.keys.keys) == (3600, [])


@pytest.mark.parametrize("defect", [ValueError("no port"), UnicodeError("label too long"), KeyError("x")])
def test_an_unexpected_error_is_a_failed_read(defect: Exception) -> None:
    """Otherwise it would end the thread, and the keys would not be read again until the next start."""
    world = World()

    def fail() -> bytes:
        raise defect

    fetched, world.keys._fetch = world.keys._fetch, fail
    assert world.keys.step() == 0.1
    world.keys._fetch, world.now = fetched, 1
    assert (world.keys.step(), world.keys.keys) == (3600, [1])


def test_unknown_keys_cause_one_early_read_a_minute() -> None:
    world = World()
    world.keys.step()
    for second in range(0, 600, 3):
        world.now = second
        world.keys.note_unknown()
        world.keys.step()
    assert world.reads == 1 + 600 // EARLY_PAUSE_S


def test_unknown_keys_cause_no_early_read_while_reads_fail() -> None:
    world = World()
    world.document = b"no"
    world.keys.step()
    assert not world.keys.note_unknown()
    assert world.reads == 1


def test_a_read_that_is_asked_for_during_another_is_not_lost() -> None:
    world = World()
    fetched = world._fetch

    def fetch() -> bytes:
        world.keys.note_unknown()
        return fetched()

    world.keys._fetch = fetch
    world.keys.step()
    world.keys._fetch = fetched
    world.keys.step()
    assert world.reads == 2


def test_the_thread_ends_when_it_is_stopped() -> None:
    """It has read the keys, and waits an hour for the next time."""
    world, has_read = World(), threading.Event()
    fetched = world._fetch

    def fetch() -> bytes:
        has_read.set()
        return fetched()

    world.keys._fetch = fetch
    thread = threading.Thread(target=world.keys.run, daemon=True)
    thread.start()
    assert has_read.wait(60)
    world.keys.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_no_wait_is_longer_than_a_lock_can_wait() -> None:
    world = World()
    world.keys._pace = Pace((2**63 - 1) / 1000, 0.1, 10)
    waits: list[float] = []

    class Wake(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0)
            world.keys.stop()
            return True

    world.keys._wake = Wake()
    world.keys.run()
    assert 3600 < waits[0] <= threading.TIMEOUT_MAX


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"keys": {}}', b"\xff", b"[" * 50_000, json.dumps({"keys": [1] * (MAX_KEYS + 1)}).encode()],
)
def test_an_invalid_jwks_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedKeysError):
        parse(data)


@contextmanager
def endpoint(status: int, body: bytes, context: ssl.SSLContext | None = None, **headers: str) -> Iterator[str]:
    """The URL of an HTTP server that gives each request this response."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_address[1]}/keys?x=1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_endpoint_is_asked_by_http() -> None:
    with endpoint(200, b'{"keys": []}') as url:
        assert fetch_url(url, None) == b'{"keys": []}'


def test_an_endpoint_is_asked_by_https(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    trusting = ssl.create_default_context(cafile=certificates.authority.certificate)
    with endpoint(200, b'{"keys": []}', server_context(certificates)) as url:
        named = url.replace("127.0.0.1", "localhost")
        assert fetch_url(named, trusting) == b'{"keys": []}'
        with pytest.raises(MalformedKeysError, match="SSLCertVerificationError"):
            fetch_url(named, None)


def test_no_redirect_is_followed() -> None:
    with (
        endpoint(200, b"secret") as target,
        endpoint(302, b"", Location=target) as url,
        pytest.raises(MalformedKeysError, match="302"),
    ):
        fetch_url(url, None)


def test_a_response_that_is_too_long_is_refused() -> None:
    with endpoint(200, bytes(MAX_BYTES + 1)) as url, pytest.raises(MalformedKeysError, match="bytes"):
        fetch_url(url, None)


def test_an_answer_that_takes_too_long_is_a_failed_read() -> None:
    times = iter([0.0, 11.0])
    with endpoint(200, b"slow") as url, pytest.raises(MalformedKeysError, match="too long"):
        fetch_url(url, None, lambda: next(times))


def test_headers_that_come_byte_by_byte_have_the_deadline_too() -> None:
    """A server that sent one every three seconds held the read without an end."""
    with slow_server() as server, pytest.raises(MalformedKeysError, match=r"/keys: it takes too long$"):
        fetch_url(f"{server.url}/keys", None, server.look_at_clock)
    assert server.now_s == 11


@pytest.mark.parametrize("status", [404, 200])
def test_an_error_does_not_show_the_query_in_which_a_key_may_stand(status: int) -> None:
    with (
        endpoint(status, bytes(MAX_BYTES + 1)) as url,
        pytest.raises(MalformedKeysError) as raised,
    ):
        fetch_url(f"{url}&key=s3cret", None)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("https://[2001:db8::10]/keys", ("2001:db8::10", 443)),
        ("http://[::1]/keys", ("::1", 80)),
        ("http://[fe80::abcd]:8080/keys", ("fe80::abcd", 8080)),
        ("https://keys.example/", ("keys.example", 443)),
    ],
)
def test_an_endpoint_without_a_port_has_that_of_its_scheme(
    url: str, asked: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """http.client takes the last group of an IPv6 address for the port."""
    found = []

    def refuse(host: str, port: int, _deadline: object) -> None:
        found.append((host, port))
        raise ConnectionRefusedError

    monkeypatch.setattr(timed_http, "_connect", refuse)
    with pytest.raises(MalformedKeysError):
        fetch_url(url, None)
    assert found == [asked]


def test_an_endpoint_that_is_not_there_is_a_failure() -> None:
    with endpoint(200, b"") as url:
        pass
    with pytest.raises(MalformedKeysError, match="ConnectionRefused"):
        fetch_url(url, None)


def test_a_file_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "keys with space.json"
    path.write_bytes(b"{}")
    assert fetch_file(file_of(path.as_uri()) or "") == b"{}"
    with pytest.raises(MalformedKeysError):
        fetch_file(str(tmp_path / "none"))
    path.write_bytes(bytes(MAX_BYTES + 1))
    with pytest.raises(MalformedKeysError):
        fetch_file(str(path))
    assert file_of("https://x/y") is None
