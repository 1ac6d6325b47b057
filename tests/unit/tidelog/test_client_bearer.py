"""Bearer tokens of a client: from a file, from an issuer, and profiles that name neither."""

from __future__ import annotations

import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.support.slow_server import slow_server
from tidelog.admin_interface import AdminInterface, login_headers
from tidelog.broker.security import timed_http
from tidelog.broker.security.sasl.client.bearer import exchange_bearer
from tidelog.client import ClientError, SettingsError
from tidelog.client.sasl.bearer import (
    ENCODING_KEY,
    HANDLER_KEY,
    ID_KEY,
    MAX_BYTES,
    SCOPE_KEY,
    SECRET_KEY,
    URL_KEY,
    BearerCredentials,
)
from tidelog.client.sasl.credentials import JAAS_KEY, MECHANISM_KEY, read_credentials
from tidelog.client.security import Security

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
CLIENT = {ID_KEY: "ann", SECRET_KEY: "se cret"}


class Issuer:
    """An endpoint that answers as a test says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.answer = json.dumps({"access_token": "a.b-c_d", "token_type": "Bearer"}).encode()
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                issuer.asked.append((b64decode(self.headers["Authorization"].split()[1]).decode(), form))
                if not issuer.status:
                    self.wfile.write(b"no HTTP at all\r\n\r\n")
                    return
                self.send_response(issuer.status)
                for name, value in issuer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(issuer.answer)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    yield issuer
    issuer.close()


def read(**properties: str) -> BearerCredentials:
    found = read_credentials({MECHANISM_KEY: "OAUTHBEARER", **properties})
    assert isinstance(found, BearerCredentials)
    return found


@pytest.mark.parametrize(
    ("given", "login"),
    [({}, "ann:se cret/+"), ({ENCODING_KEY: "false"}, "ann:se cret/+"), ({ENCODING_KEY: "true"}, "ann:se+cret%2F%2B")],
)
def test_an_issuer_is_asked_by_the_clients_own_secret(issuer: Issuer, given: dict[str, str], login: str) -> None:
    credentials = read(**{**CLIENT, SECRET_KEY: "se cret/+", URL_KEY: issuer.url, SCOPE_KEY: "kafka all", **given})
    assert credentials.fetch_token() == "a.b-c_d"
    assert issuer.asked == [(login, {"grant_type": ["client_credentials"], "scope": ["kafka all"]})]
    assert "se cret" not in repr(credentials)


def test_an_unknown_way_to_encode_a_login_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"header\.urlencode=maybe: expected true or false"):
        read(**CLIENT, **{URL_KEY: "https://issuer/token", ENCODING_KEY: "maybe"})


def test_name_and_secret_may_stand_in_the_jaas_text(issuer: Issuer) -> None:
    jaas = f'{MODULE} required clientId="ann" clientSecret="secret" scope="all";'
    assert read(**{URL_KEY: issuer.url, JAAS_KEY: jaas}).fetch_token() == "a.b-c_d"
    assert issuer.asked == [("ann:secret", {"grant_type": ["client_credentials"], "scope": ["all"]})]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"access_token": 1}',
        b'{"access_token": ""}',
        b'{"access_token": "a\\u0001b"}',
        b"\xff",
        b"[" * 60_000,
        b'{"access_token": "a"}' + b" " * 65_536,
    ],
    ids=["empty", "no field", "array", "null", "number", "empty token", "control", "not UTF-8", "nested", "too long"],
)
def test_an_answer_without_a_token_says_so(issuer: Issuer, answer: bytes) -> None:
    issuer.answer = answer
    with pytest.raises(ClientError, match="gives no token"):
        read(**CLIENT, **{URL_KEY: issuer.url}).fetch_token()


@pytest.mark.parametrize("size", [MAX_BYTES, MAX_BYTES + 1])
def test_a_token_is_sent_whole_or_not_at_all(tmp_path: Path, size: int) -> None:
    file = tmp_path / "token"
    file.write_text("a" * size)
    credentials = read(**{URL_KEY: file.as_uri()})
    if size <= MAX_BYTES:
        assert credentials.fetch_token() == "a" * size
    else:
        with pytest.raises(ClientError, match="gives no token: more than 65536 bytes"):
            credentials.fetch_token()


def test_an_issuer_that_does_not_speak_http_is_reported(issuer: Issuer) -> None:
    issuer.status = 0
    with pytest.raises(ClientError, match="gives no token: BadStatusLine"):
        read(**CLIENT, **{URL_KEY: issuer.url}).fetch_token()


def test_headers_that_come_byte_by_byte_have_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """An issuer that sent one every few seconds held the command without an end."""
    with slow_server() as server:
        monkeypatch.setattr(timed_http, "Deadline", partial(timed_http.Deadline, now_s=server.look_at_clock))
        with pytest.raises(ClientError, match="it takes too long"):
            read(**CLIENT, **{URL_KEY: f"{server.url}/token"}).fetch_token()
    assert server.now_s == 11


def test_an_error_does_not_show_the_query_in_which_a_key_may_stand(issuer: Issuer) -> None:
    for status, answer in ((500, b""), (200, b"no token")):
        issuer.status, issuer.answer = status, answer
        with pytest.raises(ClientError, match="gives no token") as raised:
            read(**CLIENT, **{URL_KEY: f"{issuer.url}?key=s3cret"}).fetch_token()
        assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 401, 500])
def test_a_redirect_does_not_get_the_secret(issuer: Issuer, status: int) -> None:
    issuer.status, issuer.headers = status, {"Location": issuer.url}
    with pytest.raises(ClientError, match=f"gives no token: HTTP Error {status}") as refused:
        read(**CLIENT, **{URL_KEY: issuer.url}).fetch_token()
    assert len(issuer.asked) == 1
    assert "se cret" not in str(refused.value)


def test_the_secret_does_not_leave_this_machine_by_a_proxy(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, issuer.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ClientError, match="gives no token"):
        read(**CLIENT, **{URL_KEY: "http://127.0.0.1:1/token"}).fetch_token()
    assert issuer.asked == []


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, "expected a file:/// or https: URL"),
        ({URL_KEY: "http://issuer.example/token", **CLIENT}, "expected a file:/// or https: URL"),
        ({URL_KEY: "ftp://127.0.0.1/token", **CLIENT}, "expected a file:/// or https: URL"),
        ({URL_KEY: "file:token"}, "expected a file:/// or https: URL"),
        ({URL_KEY: "https://[::1/token", **CLIENT}, "expected a file:/// or https: URL"),
        (
            {URL_KEY: "https://ann:s3cret@issuer.example/token", **CLIENT},
            "https://issuer.example/token: .*without a login",
        ),
        ({URL_KEY: "https://ann:s3cret@issuer.example:x/token", **CLIENT}, "expected a file:/// or https: URL"),
        ({URL_KEY: "https://issuer.example:x/token", **CLIENT}, "expected a file:/// or https: URL"),
        ({URL_KEY: "https://issuer.example/token?key=s3cret"}, "no client id or no secret"),
        ({URL_KEY: "https://issuer.example/token", ID_KEY: "ann"}, "no client id or no secret"),
        ({URL_KEY: "file:///token", HANDLER_KEY: "x.Y"}, "OAuthBearerLoginCallbackHandler"),
        ({URL_KEY: "file:///token", JAAS_KEY: "x.Y required;"}, "OAuthBearerLoginModule"),
    ],
)
def test_a_profile_that_names_no_token_says_so(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ClientError, match=message) as raised:
        read(**properties)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(("answer", "acknowledged"), [(b"", []), (b'{"status":"invalid_token"}', [b"\x01"])])
def test_a_refusal_is_acknowledged(answer: bytes, acknowledged: list[bytes]) -> None:
    exchange = exchange_bearer("a.b.c")
    assert next(exchange) == b"n,,\x01auth=Bearer a.b.c\x01\x01"
    sent = []
    with suppress(StopIteration):
        sent.append(exchange.send(answer))
        exchange.send(b"")
    assert sent == acknowledged


def test_the_admin_interface_is_shown_the_token_where_no_one_reads_along(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a.b.c")
    security = Security({"security.protocol": "SASL_SSL", MECHANISM_KEY: "OAUTHBEARER", URL_KEY: file.as_uri()})
    assert login_headers(AdminInterface("10.0.0.7", 9644, True), security) == {"Authorization": "Bearer a.b.c"}
    assert login_headers(AdminInterface("10.0.0.7", 9644, False), security) == {}
