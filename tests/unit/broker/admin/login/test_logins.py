"""Logins, permissions and TLS of the admin interface: who may do what, what refusals say, and limits on guessing
passwords."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from tests.support.certificates import Certificates
from tests.support.issuer import AUDIENCE, ISSUER, Issuer, unsecured, write_keys
from tests.support.topics import create_topic
from tests.unit.broker.admin.test_guard import Answer, Site, served
from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.admin import app, find, permissions
from tidelog.broker.admin.app import serve
from tidelog.broker.admin.find import take
from tidelog.broker.admin.login import logins as admin_login
from tidelog.broker.admin.login import passwords as passwords_module
from tidelog.broker.admin.login.access import check_access, methods_of
from tidelog.broker.admin.login.bearers import Bearers, UnknownBearerError
from tidelog.broker.admin.login.passwords import REMEMBERED_MS, Passwords, find_proved
from tidelog.broker.admin.login.tokens import TokenFile, make_token, parse_tokens
from tidelog.broker.admin.permissions import CONSOLE_NEEDS, NEEDS, OPEN
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.broker.controller.clients.scram_credentials import MIN_ITERATIONS, ScramCredentials, ScramMechanism
from tidelog.broker.find.finding import FoundRecord
from tidelog.broker.loop.log_openings import opening_expected
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.metadata.metadata_image import ScramState
from tidelog.protocol.acl import AclOperation, AclPermissionType, PatternType, ResourceType
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.metadata_records.records import AccessControlEntryRecord, RemoveAccessControlEntryRecord

TOPICS = ("orders", "secrets")
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="plain" user_root="root";'
SASL = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
}
AUTHORIZER = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:root"}
PAGES = [("GET", "/metrics"), ("GET", "/compaction"), ("POST", "/compaction/orders?dry_run=1&wait=0"),
         ("GET", "/topics/orders/records?max=0"), ("POST", "/logs/retry"), ("GET", "/nothing")]  # fmt: skip

LET_IN = [200, 200, 202, 400, 200, 404]
"""Answers to those who may do everything; a look-up of no record is a bad question."""


@pytest.fixture(autouse=True)
def short_stop_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the interface end at once, though answers to wrong passwords still wait."""
    monkeypatch.setattr(app, "STOP_TIMEOUT_S", 0.001)  # 0 would have no limit


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@asynccontextmanager
async def site(directory: Path, texts: Mapping[str, str]) -> AsyncIterator[Site]:
    parts = DataBroker(directory, {**texts, "log.cleaner.enable": "false"})
    parts.broker = replace(parts.broker, loop=asyncio.get_running_loop())
    with opening_expected():
        for topic in TOPICS:
            create_topic(parts, topic, 1, 1, {"cleanup.policy": "compact", "index.keys": "true"})
    salted = hashlib.pbkdf2_hmac("sha512", b"scram", b"salt", 4096)
    ScramCredentials(parts.broker.controller).put("bob", ScramMechanism.SCRAM_SHA_512, 4096, b"salt", salted)
    async with served(parts) as asked:
        yield asked


def allow(asked: Site, user: str, operation: AclOperation, kind: ResourceType, name: str) -> bytes:
    """Create an ACL; return its id."""
    record = AccessControlEntryRecord(
        id=uuid4().bytes, resource_type=kind, resource_name=name, pattern_type=PatternType.LITERAL,
        principal=f"User:{user}", host="*", operation=operation, permission_type=AclPermissionType.ALLOW,
    )  # fmt: skip
    asked.parts.broker.controller.commit([VersionedRecord(record)])
    return record.id


async def ask_all_pages(asked: Site, headers: Mapping[str, str]) -> list[int]:
    return [(await asked.ask(method, path, headers)).status for method, path in PAGES]


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Digest x"}, {"Authorization": "Basic ???"},
                                     {"Authorization": "Basic YQ=="}, {"Authorization": "Bearer abc"},
                                     basic("ann", "wrong"), basic("nobody", "plain"), basic("bob", "wrong"),
                                     basic("ann", "plain\0"), basic("User:ann", "plain")])  # fmt: skip
async def test_every_page_requires_a_login(
    tmp_path: Path, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_login, "FAILED_DELAY_MS", 0)
    async with site(tmp_path, SASL) as asked:
        assert set(await ask_all_pages(asked, headers)) == {401}
        answer = await asked.ask("GET", "/metrics", headers)
        assert answer.headers["www-authenticate"].startswith('basic realm="tidelog"')
        assert asked.parts.broker.services.cleaner.made is None


async def test_health_is_open_without_details(tmp_path: Path) -> None:
    async with site(tmp_path, SASL) as asked:
        assert (await asked.ask("GET", "/healthz")).status == 200
        assert (await asked.ask("GET", "/readyz")).status == 200
        asked.parts.log_manager.directories[0].state.mark_offline(OSError("secret reason"))  # type: ignore[arg-type]
        stranger = await asked.ask("GET", "/readyz")
        assert (stranger.status, stranger.body) == (503, b"not ready\n")
        assert b"secret reason" in (await asked.ask("GET", "/readyz", basic("ann", "plain"))).body


@pytest.mark.parametrize(("user", "password"), [("ann", "plain"), ("bob", "scram")])
async def test_users_of_plain_and_scram_may_log_in(tmp_path: Path, user: str, password: str) -> None:
    async with site(tmp_path, SASL) as asked:
        assert await ask_all_pages(asked, basic(user, password)) == LET_IN


@pytest.mark.parametrize("known", [[m] for m in ScramMechanism] + [list(ScramMechanism)])
async def test_an_unknown_user_takes_the_work_of_a_known_one(
    known: list[ScramMechanism], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same derivations: how long a refusal takes tells no name."""
    work: list[tuple[str, int]] = []

    def derive_key(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        work.append((name, iterations))
        return bytes(32)

    monkeypatch.setattr("tidelog.broker.admin.login.passwords.hashlib.pbkdf2_hmac", derive_key)
    credential = ScramState(b"salt", b"stored", b"server", 2 * MIN_ITERATIONS)
    with ThreadPoolExecutor(1) as executor:
        passwords = Passwords(
            BrokerConfig({}), lambda user, one: credential if user == "ann" and one in known else None, lambda: 0.0,
            executor, lambda _: 2 * MIN_ITERATIONS,
        )  # fmt: skip
        seen = []
        for user in ("ann", "nobody"):
            assert not await passwords.check("10.0.0.1", user, "wrong")
            seen.append(sorted(work))
            work.clear()
    assert seen[0] == seen[1] != []


async def test_a_password_that_changes_is_asked_for_at_once(tmp_path: Path) -> None:
    async with site(tmp_path, SASL) as asked:
        assert (await asked.ask("GET", "/metrics", basic("bob", "scram"))).status == 200
        credentials = ScramCredentials(asked.parts.broker.controller)
        salted = hashlib.pbkdf2_hmac("sha512", b"other", b"salt", 4096)
        credentials.put("bob", ScramMechanism.SCRAM_SHA_512, 4096, b"salt", salted)
        assert (await asked.ask("GET", "/metrics", basic("bob", "scram"))).status == 401
        assert (await asked.ask("GET", "/metrics", basic("bob", "other"))).status == 200
        credentials.delete("bob", ScramMechanism.SCRAM_SHA_512)
        assert (await asked.ask("GET", "/metrics", basic("bob", "other"))).status == 401


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_a_password_that_changes_while_it_is_checked_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    monkeypatch.setattr(admin_login, "FAILED_DELAY_MS", 0)
    async with site(tmp_path, SASL) as asked:
        credentials = ScramCredentials(asked.parts.broker.controller)
        loop = asyncio.get_running_loop()

        async def change() -> None:
            if is_deleted:
                credentials.delete("bob", ScramMechanism.SCRAM_SHA_512)
            else:
                salted = hashlib.pbkdf2_hmac("sha512", b"other", b"salt", 4096)
                credentials.put("bob", ScramMechanism.SCRAM_SHA_512, 4096, b"salt", salted)

        def find_and_change(*arguments: Any) -> ScramState | None:
            asyncio.run_coroutine_threadsafe(change(), loop).result()
            return find_proved(*arguments)

        monkeypatch.setattr(passwords_module, "find_proved", find_and_change)
        assert (await asked.ask("GET", "/metrics", basic("bob", "scram"))).status == 401


async def test_an_answer_ends_when_the_permission_to_read_is_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(tmp_path, {**SASL, **AUTHORIZER}) as asked:
        acl = allow(asked, "ann", AclOperation.READ, ResourceType.TOPIC, "notes")
        with opening_expected():
            create_topic(asked.parts, "notes", 1)
        for value in (b"first", b"second"):
            asked.parts.append("notes", value)
        loop, parts = asyncio.get_running_loop(), []

        async def revoke() -> None:
            asked.parts.broker.controller.commit([VersionedRecord(RemoveAccessControlEntryRecord(id=acl))])

        def take_one(records: Iterator[FoundRecord], as_base64: bool) -> bytes:
            parts.append(take(islice(records, 1), as_base64))
            if len(parts) == 2:
                asyncio.run_coroutine_threadsafe(revoke(), loop).result()
            return parts[-1]

        monkeypatch.setattr(find, "take", take_one)
        answer = await asked.ask("GET", "/topics/notes/records", basic("ann", "plain"))
        assert b"second" in answer.body, "the newest record comes first"
        assert b"first" in parts[1]
        assert b"first" not in answer.body


async def test_a_search_that_waits_sends_nothing_after_the_permission_to_read_is_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(tmp_path, {**SASL, **AUTHORIZER}) as asked:
        acl = allow(asked, "ann", AclOperation.READ, ResourceType.TOPIC, "notes")
        with opening_expected():
            create_topic(asked.parts, "notes", 1)
        asked.parts.append("notes", b"first")
        loop = asyncio.get_running_loop()

        async def revoke() -> None:
            asked.parts.broker.controller.commit([VersionedRecord(RemoveAccessControlEntryRecord(id=acl))])

        def take_late(records: Iterator[FoundRecord], as_base64: bool) -> bytes:
            asyncio.run_coroutine_threadsafe(revoke(), loop).result()
            return take(records, as_base64)

        monkeypatch.setattr(find, "take", take_late)
        answer = await asked.ask("GET", "/topics/notes/records", basic("ann", "plain"))
        assert (answer.status, b"first" in answer.body) == (403, False)


async def test_a_permission_that_is_revoked_while_the_body_comes_is_gone(tmp_path: Path) -> None:
    async with site(tmp_path, {**SASL, **AUTHORIZER}) as asked:
        allow(asked, "ann", AclOperation.DESCRIBE, ResourceType.TOPIC, "orders")
        acl = allow(asked, "ann", AclOperation.ALTER, ResourceType.TOPIC, "orders")
        reader, writer = await asyncio.open_connection("127.0.0.1", asked.port)
        login = basic("ann", "plain")["Authorization"]
        head = f"POST /compaction/orders HTTP/1.1\r\nHost: localhost\r\nAuthorization: {login}\r\nContent-Length: 2\r\n"
        writer.write(head.encode() + b"\r\n{")
        await asyncio.sleep(0.2)  # the header is received, and the broker waits for the body
        asked.parts.broker.controller.commit([VersionedRecord(RemoveAccessControlEntryRecord(id=acl))])
        writer.write(b"}")
        assert b" 403 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
        assert asked.parts.broker.services.cleaner.made is None


async def test_each_page_asks_the_authorizer(tmp_path: Path) -> None:
    async with site(tmp_path, {**SASL, **AUTHORIZER}) as asked:
        assert await ask_all_pages(asked, basic("root", "root")) == LET_IN
        assert await ask_all_pages(asked, basic("ann", "plain")) == [403, 403, 404, 404, 403, 404]
        allow(asked, "ann", AclOperation.DESCRIBE, ResourceType.TOPIC, "orders")
        assert await ask_all_pages(asked, basic("ann", "plain")) == [403, 403, 403, 403, 403, 404]
        for operation in (AclOperation.READ, AclOperation.ALTER):
            allow(asked, "ann", operation, ResourceType.TOPIC, "orders")
        assert await ask_all_pages(asked, basic("ann", "plain")) == [403, 403, 202, 400, 403, 404]
        allow(asked, "ann", AclOperation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
        assert await ask_all_pages(asked, basic("ann", "plain")) == LET_IN


async def test_topics_that_a_user_may_not_describe_look_like_missing_ones(tmp_path: Path) -> None:
    async with site(tmp_path, {**SASL, **AUTHORIZER}) as asked:
        allow(asked, "ann", AclOperation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster")
        allow(asked, "ann", AclOperation.DESCRIBE, ResourceType.TOPIC, "orders")
        for method, path in (("POST", "/compaction/{}"), ("GET", "/topics/{}/records?key=a")):
            hidden = await asked.ask(method, path.format("secrets"), basic("ann", "plain"))
            missing = await asked.ask(method, path.format("missing"), basic("ann", "plain"))
            assert (hidden.status, hidden.body) == (missing.status, missing.body.replace(b"missing", b"secrets"))
        rows = json.loads((await asked.ask("GET", "/compaction", basic("ann", "plain"))).body)
        assert {row["topic_partition"]["topic"] for row in rows} == {"orders"}


async def test_permissions_of_many_topics_are_checked_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand took 44 ms in one turn of the loop."""
    checked: list[str] = []
    turns: list[int] = []

    def note_turn() -> None:
        turns.append(len(checked))
        if len(checked) < 1_000:
            asyncio.get_running_loop().call_soon(note_turn)

    def may_describe(_broker: object, _request: object, topic: str) -> bool:
        checked.append(topic)
        return topic != "t7"

    monkeypatch.setattr(permissions, "may_describe", may_describe)
    rows = [f"t{number}" for number in range(1_000)] * 2
    asyncio.get_running_loop().call_soon(note_turn)
    broker = SimpleNamespace(authorizer=object())
    shown = await permissions.filter_visible(cast(Any, broker), cast(Any, None), rows, lambda name: name)
    assert shown == [name for name in rows if name != "t7"]
    assert len(checked) == 1_000, "each topic once"
    assert max(later - earlier for earlier, later in pairwise([0, *turns])) <= 200


async def test_every_page_has_its_need(tmp_path: Path) -> None:
    parts = DataBroker(tmp_path)
    parts.broker = replace(parts.broker, loop=asyncio.get_running_loop())
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    runner = await serve(parts.broker, listener)
    paths = {resource.canonical for resource in runner.app.router.resources()}
    await runner.cleanup()
    parts.close()
    assert paths == NEEDS.keys() | OPEN | CONSOLE_NEEDS.keys() | {"/", "/console/"}


async def test_tokens_read_or_write_until_they_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_login, "FAILED_DELAY_MS", 0)
    tokens = tmp_path / "tokens"
    later = 10**12
    reader, first = make_token("ann", may_write=False, expires_s=later)
    writer, second = make_token("ann", may_write=True, expires_s=later)
    ended, third = make_token("ann", may_write=True, expires_s=1)
    tokens.write_text(f"# tokens\n{first}{third}")
    texts = {"admin.authentication": "bearer", "admin.tokens.file": str(tokens)}
    async with site(tmp_path / "data", texts) as asked:
        wanted = {reader: [200, 200, 403, 400, 403, 404], ended: [401] * 6, writer: [401] * 6, "x": [401] * 6}
        for token, expected in wanted.items():
            assert await ask_all_pages(asked, {"Authorization": f"Bearer {token}"}) == expected
        tokens.write_text(second)
        assert await ask_all_pages(asked, {"Authorization": f"Bearer {writer}"}) == LET_IN
        assert await ask_all_pages(asked, {"Authorization": f"Bearer {reader}"}) == [401] * 6
        tokens.unlink()
        assert await ask_all_pages(asked, {"Authorization": f"Bearer {writer}"}) == [401] * 6


SIGNED = "admin.sasl.oauthbearer."


async def test_signed_tokens_name_their_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_login, "FAILED_DELAY_MS", 0)
    issuer = Issuer()
    issuer.key("es256")
    own, line = make_token("ann", may_write=True, expires_s=10**12)
    (tmp_path / "tokens").write_text(line)
    texts = {
        "admin.authentication": "bearer",
        "admin.tokens.file": str(tmp_path / "tokens"),
        f"{SIGNED}jwks.endpoint.url": write_keys(issuer, tmp_path / "keys.json"),
        f"{SIGNED}expected.audience": AUDIENCE,
        f"{SIGNED}expected.issuer": ISSUER,
        **AUTHORIZER,
    }
    async with site(tmp_path / "data", texts) as asked:
        wanted = {
            issuer.token(sub="root"): LET_IN,
            issuer.token(): [403, 403, 404, 404, 403, 404],
            issuer.token(exp=1): [401] * 6,
            issuer.token(aud="elsewhere"): [401] * 6,
            Issuer().token(): [401] * 6,
            unsecured(): [401] * 6,
            "a.b.c": [401] * 6,
            own: [403, 403, 404, 404, 403, 404],
        }
        for token, expected in wanted.items():
            assert await ask_all_pages(asked, {"Authorization": f"Bearer {token}"}) == expected


def test_a_bearer_without_a_file_or_a_signature_is_unknown(tmp_path: Path) -> None:
    bearers = Bearers(BrokerConfig({"admin.authentication": "bearer", "admin.tokens.file": str(tmp_path / "none")}))
    with pytest.raises(UnknownBearerError, match="cannot be read"):
        bearers.find("x", 0)
    (tmp_path / "none").write_text("")
    with pytest.raises(UnknownBearerError, match="unknown or expired"):
        bearers.find("a.b.c", 0)
    bearers.close()


def test_lines_that_are_no_tokens_are_ignored(tmp_path: Path) -> None:
    token, line = make_token("Jürgen #1 x", may_write=False, expires_s=7)
    assert [
        one.user
        for one in parse_tokens(f"a b\n\n{line}x y read -1\nx y all 5\nx y read {'1' * 5000}\n# {line}").values()
    ] == ["Jürgen #1 x"]
    path = tmp_path / "tokens"
    path.write_text(line)
    assert (TokenFile(str(path)).find(token, 6.9) is None, TokenFile(str(path)).find(token, 7.0) is None) == (
        False,
        True,
    )


async def test_guesses_of_one_address_wait_and_known_users_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand wrong passwords at once cost a few checks, and hold up no user who is known already."""
    monkeypatch.setattr(admin_login, "FAILED_DELAY_MS", 60_000)  # the first refusal never ends
    checked: list[str] = []
    begun = asyncio.Event()
    check = admin_login.Logins._check_password

    async def counted(logins: object, passwords: object, source: str, user: str, password: str) -> admin_login.Caller:
        checked.append(user)
        begun.set()
        return await check(logins, passwords, source, user, password)  # type: ignore[arg-type]

    async with site(tmp_path, {**SASL, "admin.max.connections": "50"}) as asked:
        assert (await asked.ask("GET", "/metrics", basic("bob", "scram"))).status == 200
        assert (await asked.ask("GET", "/metrics", basic("ann", "plain"))).status == 200
        monkeypatch.setattr(admin_login.Logins, "_check_password", counted)
        head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: {}\r\n\r\n"
        guesses = [await asyncio.open_connection("127.0.0.1", asked.port) for _ in range(200)]
        for number, (_, writer) in enumerate(guesses):
            writer.write(head.format(basic("bob", f"guess {number}")["Authorization"]).encode())
        await asyncio.wait_for(begun.wait(), 60)
        for _ in range(3):
            assert (await asked.ask("GET", "/metrics", basic("bob", "scram"))).status == 200
            assert (await asked.ask("GET", "/metrics", basic("ann", "plain"))).status == 200
        assert checked == ["bob"]
        for _, writer in guesses:
            writer.transport.abort()


def hold_refusals(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Have refusals never end; the event is set when the first one begins."""
    monkeypatch.setattr(admin_login, "FAILED_DELAY_MS", 60_000)
    failed = asyncio.Event()
    refuse = admin_login.Logins._refuse

    async def seen(logins: object, request: object, error: admin_login.LoginError) -> None:
        failed.set()
        await refuse(logins, request, error)  # type: ignore[arg-type]

    monkeypatch.setattr(admin_login.Logins, "_refuse", seen)
    return failed


@pytest.mark.parametrize(("user", "password"), [("ann", "plain"), ("bob", "scram")])
async def test_concurrent_password_guesses_are_checked_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, password: str
) -> None:
    """A guess is checked only when its turn comes, however many connections guess at once."""
    failed = hold_refusals(monkeypatch)
    async with site(tmp_path, SASL) as asked:
        wrong = asyncio.create_task(asked.ask("GET", "/metrics", basic(user, "wrong")))
        await asyncio.wait_for(failed.wait(), 60)
        right = asyncio.create_task(asked.ask("GET", "/metrics", basic(user, password)))
        assert not (await asyncio.wait({wrong, right}, timeout=0.2))[0]
        for guess in (wrong, right):
            guess.cancel()
        await asyncio.gather(wrong, right, return_exceptions=True)


async def test_a_token_does_not_wait_for_guesses_of_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = hold_refusals(monkeypatch)
    tokens = tmp_path / "tokens"
    token, line = make_token("ann", may_write=True, expires_s=10**12)
    tokens.write_text(line)
    given = {**SASL, "admin.authentication": "basic,bearer", "admin.tokens.file": str(tokens)}
    async with site(tmp_path, given) as asked:
        guess = asyncio.create_task(asked.ask("GET", "/metrics", basic("ann", "wrong")))
        await asyncio.wait_for(failed.wait(), 60)
        assert (await asked.ask("GET", "/metrics", {"Authorization": f"Bearer {token}"})).status == 200
        guess.cancel()
        await asyncio.gather(guess, return_exceptions=True)


async def test_a_login_in_use_stays_known_until_a_minute_after_its_last_use(tmp_path: Path) -> None:
    now_ms = 0.0
    async with site(tmp_path, SASL) as asked:
        users = ScramCredentials(asked.parts.broker.controller)
        with ThreadPoolExecutor(1) as threads:
            passwords = Passwords(
                asked.parts.broker.config, users.get, lambda: now_ms, threads, lambda _: MIN_ITERATIONS
            )
            for user, password in (("ann", "plain"), ("bob", "scram")):
                assert await passwords.check("10.0.0.1", user, password)
                for _ in range(3):
                    now_ms += REMEMBERED_MS - 1
                    assert passwords.is_known("10.0.0.1", user, password)
                now_ms += REMEMBERED_MS
                assert not passwords.is_known("10.0.0.1", user, password)


async def test_a_login_is_known_to_the_address_it_came_from_alone(tmp_path: Path) -> None:
    async with site(tmp_path, SASL) as asked:
        broker = asked.parts.broker
        users = ScramCredentials(broker.controller)
        with ThreadPoolExecutor(1) as threads:
            passwords = Passwords(broker.config, users.get, lambda: 0.0, threads, lambda _: MIN_ITERATIONS)
            for user, password in (("ann", "plain"), ("bob", "scram")):
                assert not passwords.is_known("10.0.0.1", user, password)
                assert await passwords.check("10.0.0.1", user, password)
                assert passwords.is_known("10.0.0.1", user, password)
                assert not passwords.is_known("10.0.0.2", user, password)


async def test_a_login_that_failed_and_a_write_leave_a_line_without_the_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(tmp_path, SASL) as asked:
        with caplog.at_level(logging.INFO, "tidelog.audit"):
            await asked.ask("GET", "/metrics", basic("ann\n", "hidden-word"))
            await asked.ask("POST", "/logs/retry", basic("ann", "plain"))
    lines = [json.loads(line) for line in caplog.messages if line.startswith("{")]
    assert [(line["event"], line["user"]) for line in lines] == [("login failed", "ann\n"), ("admin write", "User:ann")]
    assert "hidden-word" not in caplog.text
    assert "ann\n" not in caplog.text


async def ask_encrypted(asked: Site, context: ssl.SSLContext, path: str, headers: Mapping[str, str]) -> Answer:
    reader, writer = await asyncio.open_connection("127.0.0.1", asked.port, ssl=context, server_hostname="localhost")
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    try:
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return Answer(int(head.split()[1]) if head else 0, {}, body)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def admin_stores(certificates: Certificates) -> dict[str, str]:
    return {f"admin.{key}": text for key, text in certificates.server_texts().items()}


async def test_certificates_name_users_and_others_use_passwords(tmp_path: Path, certificates: Certificates) -> None:
    texts = {**SASL, **AUTHORIZER, **admin_stores(certificates), "admin.authentication": "mtls,basic"}
    texts["super.users"] = "User:CN=ann,OU=Lab,O=Tidelog,C=DE"
    async with site(tmp_path, texts) as asked:
        with_none = ssl.create_default_context(cafile=str(certificates.authority.certificate))
        with_one = ssl.create_default_context(cafile=str(certificates.authority.certificate))
        with_one.load_cert_chain(certificates.client.pem)
        stranger = ssl.create_default_context(cafile=str(certificates.authority.certificate))
        stranger.load_cert_chain(certificates.stranger.pem)
        assert (await ask_encrypted(asked, with_one, "/metrics", {})).status == 200
        assert (await ask_encrypted(asked, with_none, "/metrics", {})).status == 401
        assert (await ask_encrypted(asked, with_none, "/metrics", basic("ann", "plain"))).status == 403
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert (await ask_encrypted(asked, stranger, "/metrics", {})).status == 0  # closed unanswered


async def test_a_flood_of_half_handshakes_does_not_keep_others_out(tmp_path: Path, certificates: Certificates) -> None:
    async with site(tmp_path, {**SASL, **admin_stores(certificates)}) as asked:
        half = [await asyncio.open_connection("127.0.0.1", asked.port) for _ in range(150)]
        plain = half[-1]
        plain[1].write(b"GET /healthz HTTP/1.1\r\n\r\n")
        context = ssl.create_default_context(cafile=str(certificates.authority.certificate))
        assert (await ask_encrypted(asked, context, "/metrics", basic("ann", "plain"))).status == 200
        assert await half[0][0].read() == b""  # the oldest made way
        for _, writer in half:
            writer.transport.abort()


@pytest.mark.parametrize(
    ("texts", "methods"),
    [
        ({}, set()),
        ({"listeners": "PLAINTEXT://:1"}, set()),
        (SASL, {"basic"}),
        ({**SASL, "admin.authentication": "none"}, set()),
        ({"listeners": "SSL://:1", "ssl.client.auth": "required"}, {"basic"}),
        ({"listeners": "SSL://:1"}, set()),
        ({"admin.listener": "0.0.0.0:1"}, {"basic"}),
    ],
)
def test_a_login_is_asked_for_where_others_reach_it_or_clients_log_in(texts: dict[str, str], methods: set[str]) -> None:
    assert methods_of(BrokerConfig(texts)) == methods


@pytest.mark.parametrize(
    "texts",
    [
        {"admin.listener": "0.0.0.0:1"},
        {"admin.listener": "10.0.0.1:1", "admin.authentication": "basic"},
        {"admin.authentication": "mtls"},
        {"admin.authentication": "bearer"},
        {"admin.authentication": "none,basic"},
        {"admin.authentication": "bearer", f"{SIGNED}jwks.endpoint.url": "http://issuer.example/keys"},
        {
            "admin.authentication": "bearer",
            f"{SIGNED}jwks.endpoint.url": "file:///keys",
            "org.apache.kafka.sasl.oauthbearer.allowed.files": "/other",
        },
    ],
)
def test_a_contradictory_configuration_refuses_the_start(texts: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"admin\.(listener|authentication|tokens\.file|sasl\.oauthbearer)"):
        check_access(BrokerConfig(texts))
    check_access(BrokerConfig({**texts, "admin.listener": ""}))
    check_access(BrokerConfig({"admin.listener": "0.0.0.0:1", "admin.authentication": "none"}))


def test_a_certificate_chain_without_its_key_means_tls() -> None:
    """Its store is refused; without TLS the interface would send everything in plain text."""
    texts = {"admin.listener": "127.0.0.1:1", "admin.ssl.keystore.certificate.chain": "a chain"}
    assert check_access(BrokerConfig(texts))["ssl.keystore.certificate.chain"] == "a chain"
