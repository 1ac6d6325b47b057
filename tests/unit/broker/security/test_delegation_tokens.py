"""Delegation tokens: created, renewed, expired, described, and used for a login by SCRAM, as in Apache Kafka."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from tests.unit.broker.admin_broker import AdminBroker, context_of
from tests.unit.broker.handlers.drive import drive
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.broker.controller.clients.scram_credentials import ScramMechanism
from tidelog.broker.controller.embedded import EmbeddedController
from tidelog.broker.loop.timers import TimerQueue
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.delegation_tokens import DelegationTokens
from tidelog.broker.security.principal import ANONYMOUS, Principal
from tidelog.broker.security.sasl.authenticator import SaslAuthenticator, State
from tidelog.broker.security.sasl.errors import InvalidTokenError
from tidelog.broker.security.sasl.scram import ScramServer, ScramUsers
from tidelog.broker.services import schedule_sweeps
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.header import RequestHeader, encode_request_header
from tidelog.protocol.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from tidelog.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from tidelog.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from tidelog.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from tidelog.protocol.metadata_records.records import RemoveDelegationTokenRecord

SECRET = {"delegation.token.secret.key": "word", "delegation.token.max.lifetime.ms": "1000",
          "delegation.token.expiry.time.ms": "100"}  # fmt: skip
LISTENERS = {
    "listeners": "PLAINTEXT://:1,SSL://:2,SASL_PLAINTEXT://:3",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
}
AUTHORIZER = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:root"}
DISABLED, NOT_FOUND, MISMATCH, NOT_ALLOWED, UNAUTHORIZED, EXPIRED, PRINCIPAL_TYPE = range(61, 68)


class World(AdminBroker):
    """A broker whose clients have logged in, and whose threads are at hand at once."""

    def __init__(self, directory: Path, texts: dict[str, str]) -> None:
        super().__init__(directory, {**LISTENERS, **texts})
        self.loop = ImmediateLoop()
        self.broker = replace(self.broker, loop=self.loop)  # type: ignore[arg-type]
        self.tokens: DelegationTokens = self.broker.services.tokens.get()

    def create(self, user: str = "ann", *, owner: str | None = None, renewers: tuple[str, ...] = (), ms: int = -1,
               context: RequestContext | None = None) -> CreateDelegationTokenResponse:  # fmt: skip
        request = CreateDelegationTokenRequest(
            owner_principal_type=owner and "User", owner_principal_name=owner, max_lifetime_ms=ms,
            renewers=[CreatableRenewers(principal_type=kind, principal_name=name)
                      for kind, _, name in (one.partition(":") for one in renewers)],
        )  # fmt: skip
        return drive(self.broker, request, CreateDelegationTokenResponse, context=context or client(user))

    def renew(self, user: str, secret: bytes, ms: int = -1) -> tuple[int, int]:
        request = RenewDelegationTokenRequest(hmac=secret, renew_period_ms=ms)
        response = drive(self.broker, request, RenewDelegationTokenResponse, context=client(user))
        return response.error_code, response.expiry_timestamp_ms

    def expire(self, user: str, secret: bytes, ms: int = -1) -> tuple[int, int]:
        request = ExpireDelegationTokenRequest(hmac=secret, expiry_time_period_ms=ms)
        response = drive(self.broker, request, ExpireDelegationTokenResponse, context=client(user))
        return response.error_code, response.expiry_timestamp_ms

    def described(self, user: str, *owners: str, of_all: bool = False) -> set[str]:
        given = [DescribeDelegationTokenOwner(principal_type="User", principal_name=name) for name in owners]
        request = DescribeDelegationTokenRequest(owners=None if of_all else given)
        response = drive(self.broker, request, DescribeDelegationTokenResponse, context=client(user))
        assert response.error_code == 0
        return {token.principal_name for token in response.tokens}

    @property
    def now_ms(self) -> int:
        return self.time.milliseconds()


class ImmediateLoop:
    """A loop whose threads are done at once."""

    def run_in_executor(self, _executor: object, work: object) -> asyncio.Future[object]:
        with ThreadPoolExecutor(1) as executor:
            return executor.submit(work)  # type: ignore[arg-type, return-value]


def client(user: str, listener: str = "SASL_PLAINTEXT", *, by_token: bool = False) -> RequestContext:
    context = context_of(0)
    context.listener_name, context.principal, context.token_authenticated = listener, Principal("User", user), by_token
    return context


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, SECRET)
    yield world
    world.controller.close()


def test_a_token_is_created_kept_and_found_by_its_secret(world: World) -> None:
    made = world.create(renewers=("User:bob",))
    assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (0, "ann", "ann")
    assert (made.expiry_timestamp_ms, made.max_timestamp_ms) == (world.now_ms + 100, world.now_ms + 1000)
    assert bytes(made.hmac) == hmac.digest(b"word", made.token_id.encode(), "sha512")
    assert world.renew("ann", bytes(made.hmac)) == (0, world.now_ms + 100)
    again = world.reopen()
    (token,) = again.controller.image.tokens.values()
    assert (token.owner, token.renewers, token.token_id) == ("User:ann", ("User:bob",), made.token_id)
    assert b"word" not in (Path(world.directory) / "__cluster_metadata-0" / f"{0:020}.log").read_bytes()


@pytest.mark.parametrize(
    ("context", "code"),
    [
        (client("ann", "PLAINTEXT"), NOT_ALLOWED),
        (client("ANONYMOUS", "SSL"), NOT_ALLOWED),
        (client("ann", by_token=True), NOT_ALLOWED),
        (client("CN=ann", "SSL"), 0),
        (client("ann"), 0),
    ],
)
def test_only_authenticated_users_may_manage_tokens(world: World, context: RequestContext, code: int) -> None:
    if context.principal == ANONYMOUS:
        context.principal = ANONYMOUS
    assert world.create(context=context).error_code == code
    asked = drive(world.broker, DescribeDelegationTokenRequest(owners=None), DescribeDelegationTokenResponse,
                  context=context)  # fmt: skip
    assert asked.error_code == code


def test_without_a_secret_key_there_are_no_tokens(tmp_path: Path) -> None:
    world = World(tmp_path, {})
    assert world.create().error_code == DISABLED
    assert world.renew("ann", b"x") == (DISABLED, -1)
    assert world.expire("ann", b"x") == (DISABLED, -1)
    answer = drive(world.broker, DescribeDelegationTokenRequest(), DescribeDelegationTokenResponse,
                   context=client("ann"))  # fmt: skip
    assert answer.error_code == DISABLED


def test_owner_and_renewers_renew_up_to_the_end_of_life(world: World) -> None:
    secret = bytes(world.create(renewers=("User:bob",)).hmac)
    end = world.now_ms + 1000
    assert world.renew("eve", secret) == (MISMATCH, -1)
    assert world.renew("bob", b"wrong") == (NOT_FOUND, -1)
    assert world.renew("bob", secret, 7) == (0, world.now_ms + 7)
    assert world.renew("bob", secret, 10**9) == (0, world.now_ms + 100)
    for _ in range(10):
        world.time.advance(99)
        assert world.renew("ann", secret) == (0, min(world.now_ms + 100, end))
    world.time.advance(11)
    assert world.renew("ann", secret) == (EXPIRED, -1)
    assert world.expire("ann", secret, 5) == (EXPIRED, -1)


def test_a_token_is_expired_now_or_later_and_swept(world: World) -> None:
    first, second = bytes(world.create().hmac), bytes(world.create().hmac)
    assert world.expire("eve", first) == (MISMATCH, -1)
    assert world.expire("ann", first) == (0, world.now_ms)
    assert world.renew("ann", first) == (NOT_FOUND, -1)
    assert world.expire("ann", second, 5) == (0, world.now_ms + 5)
    world.tokens.sweep()
    assert len(world.controller.image.tokens) == 1
    world.time.advance(6)
    world.tokens.sweep()
    assert world.controller.image.tokens == {}


def test_a_sweep_that_fails_is_not_the_last(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Expired tokens stayed until the next start once a full disk had refused to record their removal."""
    world.create()
    world.time.advance(101)
    timers = TimerQueue(world.time.monotonic_ms, lambda *_: SimpleNamespace(cancel=lambda: None))
    broker = replace(world.broker, timers=timers)
    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedController, "commit", refuse_records)
        schedule_sweeps(broker, world.tokens)
    assert "cannot remove expired delegation tokens, trying again: no space" in caplog.text
    assert len(world.controller.image.tokens) == 1
    world.time.advance(broker.config.get_int("delegation.token.expiry.check.interval.ms"))
    timers.catch_up()
    assert world.controller.image.tokens == {}


def refuse_records(*_: object) -> NoReturn:
    raise KafkaStorageError("no space")


def test_renewers_are_users_and_a_lifetime_is_bounded(world: World) -> None:
    assert world.create(renewers=("Group:lab",)).error_code == PRINCIPAL_TYPE
    asked = CreateDelegationTokenRequest(owner_principal_type="Group", owner_principal_name="ann", renewers=[])
    answer = drive(world.broker, asked, CreateDelegationTokenResponse, context=client("ann"))
    assert answer.error_code == PRINCIPAL_TYPE  # its bearer would be User:ann
    assert world.create(ms=5).max_timestamp_ms == world.now_ms + 5
    assert world.create(ms=2**63 - 1).max_timestamp_ms == world.now_ms + 1000


def test_others_tokens_need_rights(tmp_path: Path) -> None:
    world = World(tmp_path, {**SECRET, **AUTHORIZER})
    assert world.create("ann", owner="bob").error_code == UNAUTHORIZED
    made = world.create("root", owner="bob", renewers=("User:carl",))
    assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (0, "bob", "root")
    assert world.create("ann").error_code == 0
    assert world.described("ann", of_all=True) == {"ann"}
    assert world.described("root", of_all=True) == {"ann", "bob"}
    assert world.described("carl", of_all=True) == {"bob"}
    assert world.described("root", "carl") == {"bob"}  # by its renewer, too
    assert world.described("root", "eve") == set()
    assert world.described("root") == set()


def scram_login(users: ScramUsers, token_id: str, password: str) -> tuple[str | None, int | None]:
    """Log in as Kafka's ScramLoginModule does with tokenauth=true; the user, and the token's end."""
    server = ScramServer(users)
    bare = f"n={token_id},r=nonce,tokenauth=true"
    first = server.evaluate(f"n,,{bare}".encode()).token.decode()
    nonce, salt, iterations = (part[2:] for part in first.split(","))
    salted = hashlib.pbkdf2_hmac(users.hash_name, password.encode(), base64.b64decode(salt), int(iterations))
    client_key = hmac.digest(salted, b"Client Key", users.hash_name)
    unproved = f"c=biws,r={nonce}"
    stored_key = hashlib.new(users.hash_name, client_key).digest()
    signature = hmac.digest(stored_key, f"{bare},{first},{unproved}".encode(), users.hash_name)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    reply = server.evaluate(f"{unproved},p={proof}".encode())
    return reply.user, reply.expires_ms


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_bearer_logs_in_as_the_owner_until_the_token_ends(world: World, mechanism: ScramMechanism) -> None:
    made = world.create()
    password = base64.b64encode(bytes(made.hmac)).decode()
    users = ScramUsers(mechanism, lambda _user, _mechanism: None, world.tokens.credential)
    assert scram_login(users, made.token_id, password) == ("ann", made.expiry_timestamp_ms)
    for token_id, tried in ((made.token_id, "wrong"), ("unknown", password), ("ann", password)):
        with pytest.raises(InvalidTokenError):
            scram_login(users, token_id, tried)
    with pytest.raises(InvalidTokenError):  # a token is no user
        scram_login(ScramUsers(mechanism, lambda _user, _mechanism: None), made.token_id, password)
    later = DelegationTokens(world.config, world.controller, lambda: world.now_ms)  # as after a restart
    users = ScramUsers(mechanism, lambda _user, _mechanism: None, later.credential)
    assert scram_login(users, made.token_id, password)[0] == "ann"
    world.time.advance(101)
    with pytest.raises(InvalidTokenError):
        scram_login(users, made.token_id, password)


def test_a_session_ends_with_its_token() -> None:
    assert [session_ms(lifetime) for lifetime in (0, 30, 300)] == [70, 30, 70]


def session_ms(lifetime_ms: int) -> int:
    """Return the session of an exchange whose token ends in 70 ms."""
    from tidelog.broker.security.sasl.mechanism import Reply

    class Shown:
        claimed = "id"

        def evaluate(self, _token: bytes, /) -> Reply:
            return Reply(b"", "ann", 170, is_by_token=True)

    exchange = SaslAuthenticator({"SCRAM-SHA-256": Shown}, {"SCRAM-SHA-256": lifetime_ms}, now_ms=lambda: 100)
    for key, body in ((17, b"\x00\x0dSCRAM-SHA-256"), (36, b"\x00\x00\x00\x00")):
        header = encode_request_header(RequestHeader(key, 1, 7, None))
        exchange.receive(memoryview(bytes(header) + body))
    assert exchange.state is State.COMPLETE
    assert exchange.identity is not None
    assert exchange.identity.is_by_token
    return exchange.lifetime_ms


def test_credentials_of_removed_tokens_are_dropped(world: World) -> None:
    """A member of a cluster kept them: there the controllers remove tokens."""
    made = [world.create().token_id for _ in range(3)]
    world.controller.commit([VersionedRecord(RemoveDelegationTokenRecord(token_id=one)) for one in made])
    last = world.create().token_id
    assert list(world.tokens._credentials) == [last]
