"""Clients in other languages on secured listeners: franz-go and sarama (Go), kafkajs (Node), unmodified.

Right credentials pass a topic on in a transaction with its offsets: they produce, consume, commit and use transactions.
Wrong ones end in that client's own error about it, and not in a timeout. ``make client-matrix`` tries every client with
every protocol and mechanism.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.admin import Admin
from tests.support.placed_records import bare, by_place
from tests.support.secured_clients import Security
from tests.support.secured_world import WAYS, SecuredWorld, Way
from tests.support.seen import Seen
from tests.support.toolchains import STAY, answer_records, ask, go_program, node_program, question_record

CLIENTS = {
    "franz-go": lambda: go_program("franz"),
    "sarama": lambda: go_program("sarama"),
    "kafkajs": lambda: node_program("kafkajs", STAY),
}
IS_WHOLE = bool(os.environ.get("TIDELOG_CLIENT_MATRIX"))
USED = WAYS if IS_WHOLE else [Way("MTLS"), Way("SASL_PLAINTEXT", "PLAIN"), Way("SASL_SSL", "SCRAM-SHA-512")]
REFUSING = [
    (way, user)
    for way in WAYS
    for user in ("ann", "unknown")
    if way.mechanism
    and (IS_WHOLE or (str(way), user) in {("SASL_PLAINTEXT-PLAIN", "ann"), ("SASL_SSL-SCRAM-SHA-256", "unknown")})
]
RECORDS = [Seen(b"key", b"one", ()), Seen(None, b"two", ())]
QUESTIONED = [question_record(0, record) for record in RECORDS]
NO_TRUST = {"franz-go": "unknown authority", "sarama": "unknown authority", "kafkajs": "certificate|self.signed"}
NOT_TRUSTED = {
    "franz-go": "tls: |certificate",
    "sarama": "tls: |certificate|run out of available brokers",
    "kafkajs": "alert|SSL",
}
"""How each says that the broker took its certificate for none."""
REFUSED = {
    "franz-go": "SASL_AUTHENTICATION_FAILED",
    "sarama": "SASL Authentication failed|run out of available brokers",
    "kafkajs": "KafkaJSSASLAuthenticationError",
}
DENIED = {
    "franz-go": "{}_AUTHORIZATION_FAILED",
    "sarama": "not authorized to access this {}",
    "kafkajs": "Not authorized to access {}",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredWorld]:
    world = SecuredWorld(tmp_path_factory.mktemp("languages"))
    with world.broker:
        world.prepare()
        yield world


def words_of(security: Security, *, is_token: bool = False) -> dict[str, Any]:
    """Return a client's security settings in the form that its program reads."""
    found: dict[str, Any] = {"is_token": is_token}
    if "SSL" in security.protocol:
        found["ca"] = str(security.ca)
    if security.pair is not None:
        found |= {"certificate": str(security.pair.certificate), "key": str(security.pair.key)}
    if security.mechanism:
        found |= {"mechanism": security.mechanism, "user": security.user, "password": security.password}
    return found


def run(client: str, address: str, security: dict[str, Any], mode: str, topic: str = "", **options: Any) -> Any:
    question = {"bootstrap": address, "mode": mode, "topic": topic, "partitions": 1, "security": security, **options}
    return ask(CLIENTS[client](), question)


def refusal(client: str, address: str, security: dict[str, Any], mode: str = "ping", **options: Any) -> str:
    """Run a client that is refused, and return its words."""
    with pytest.raises(AssertionError) as failed:
        run(client, address, security, mode, **options)
    return str(failed.value)


def use(world: SecuredWorld, client: str, listener: str, security: dict[str, Any], name: str) -> None:
    """Produce, and pass what was produced on in a transaction."""
    address = world.addresses[listener]
    for topic in (f"{name}-source", name):
        Admin(world.broker.bootstrap).create(topic, 1)
    run(client, address, security, "produce", f"{name}-source", codec="none", records=QUESTIONED)
    options = {"source": f"{name}-source", "group": name, "read_committed": True, "count": len(RECORDS)}
    assert run(client, address, security, "transactions", name, **options)["committed"]
    answer = run(client, address, security, "consume", name, count=len(RECORDS), read_committed=True)
    assert [bare(one) for one in by_place(answer_records(answer)).values()] == RECORDS


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("way", USED, ids=str)
def test_right_credentials_are_served(world: SecuredWorld, client: str, way: Way) -> None:
    use(world, client, way.listener, words_of(world.security(way)), f"{client}-{way}")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_delegation_token_is_a_login(world: SecuredWorld, mechanism: str) -> None:
    """Of these clients franz-go alone has them."""
    user, password = world.token()
    security = world.security(Way("SASL_SSL", mechanism), user=user, password=password)
    use(world, "franz-go", "SASL_SSL", words_of(security, is_token=True), f"token-{mechanism}")
    wrong = words_of(replace(security, password=password[::-1]), is_token=True)
    assert re.search(REFUSED["franz-go"], refusal("franz-go", world.addresses["SASL_SSL"], wrong))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("way", "user"), REFUSING, ids=str)
def test_a_wrong_password_or_user_is_reported(world: SecuredWorld, client: str, way: Way, user: str) -> None:
    security = words_of(world.security(way, user=user, password="wrong"))
    assert re.search(REFUSED[client], refusal(client, world.addresses[way.listener], security))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_broker_that_is_not_trusted_is_reported(world: SecuredWorld, client: str) -> None:
    stranger = world.certificates.directory / "stranger.crt"
    security = words_of(replace(world.security(Way("SSL")), ca=stranger))
    assert re.search(NO_TRUST[client], refusal(client, world.addresses["SSL"], security))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", ["none", "expired", "a stranger's"])
def test_a_client_that_is_not_trusted_says_so(world: SecuredWorld, client: str, kind: str) -> None:
    security = words_of(replace(world.security(Way("MTLS")), pair=world.wrong_pair(kind)))
    assert re.search(NOT_TRUSTED[client], refusal(client, world.addresses["MTLS"], security))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", ["topic", "group"])
def test_a_denied_topic_or_group_is_named(world: SecuredWorld, client: str, kind: str) -> None:
    way = Way("SASL_SSL", "PLAIN")
    address, security = world.addresses["SASL_SSL"], words_of(world.security(way))
    if kind == "topic":
        said = refusal(client, address, security, "produce", topic="denied-topic", codec="none", records=QUESTIONED)
    else:
        source = f"{client}-open"
        for topic in (source, f"{source}-passed"):
            Admin(world.broker.bootstrap).create(topic, 1)
        run(client, address, security, "produce", source, codec="none", records=QUESTIONED)
        options = {"source": source, "topic": f"{source}-passed", "group": "denied-group", "count": len(RECORDS)}
        said = refusal(client, address, security, "transactions", **options)
    shown = {"franz-go": kind.upper(), "sarama": kind, "kafkajs": {"topic": "topics", "group": "group"}[kind]}
    assert re.search(f"(?i){DENIED[client].format(shown[client])}", said)


def test_no_password_is_in_the_log(world: SecuredWorld) -> None:
    assert subprocess.run(["grep", "-c", "really", world.broker.log_path], check=False).returncode == 1
