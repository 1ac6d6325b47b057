"""Unmodified clients that log in by GSSAPI with tickets of a real KDC: of a user, of an unknown user, and without a
ticket."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.apache_kafka import CONSOLE_CONSUMER, console_producer, run_tool
from tests.support.broker import TidelogProcess, free_port
from tests.support.certificates import Certificates
from tests.support.kdc import REALM, Realm
from tests.support.requirements import require_tool

VALUES = [b"one", b"two"]
WAIT_S = 120
MODULE = "com.sun.security.auth.module.Krb5LoginModule"
LISTENERS = ("SASL_PLAINTEXT", "SASL_SSL")
RULES = r"RULE:[2:$1-$2](app-.*)s/app-(.*)/$1/,RULE:[1:$1](ann|nobody)s/nobody/no@user/"
"""Ann is ann, app/bob is bob, nobody is refused."""


def jaas_of(keytab: Path, principal: str) -> str:
    """Return the JAAS text of a principal with a keytab, for the broker and for Java's clients."""
    return f'{MODULE} required useKeyTab=true storeKey=true keyTab="{keytab}" principal="{principal}@{REALM}";'


class World:
    """A realm, and a broker that has a key in it."""

    def __init__(self, directory: Path, realm: Realm) -> None:
        self.realm = realm
        self.directory = directory
        self.certificates = Certificates(directory)
        self.keytab = realm.add("kafka/localhost")
        self.keytabs = {user: realm.add(user) for user in ("ann", "app/bob", "nobody")}
        self.addresses = {name: f"localhost:{free_port()}" for name in LISTENERS}
        jaas = jaas_of(self.keytab, "kafka/localhost")
        listeners = ",".join(f"{name}://{address}" for name, address in self.addresses.items())
        texts = {
            "listeners": f"PLAINTEXT://127.0.0.1:0,{listeners}",
            "advertised.listeners": listeners,  # a ticket is for a name, not for an address
            "sasl.kerberos.service.name": "kafka",
            "sasl.kerberos.principal.to.local.rules": RULES,
            **{f"listener.name.{name.lower()}.gssapi.sasl.jaas.config": jaas for name in LISTENERS},
            **self.certificates.server_texts(),
        }
        self.broker = KerberosBroker(directory / "broker", texts, realm.environment)

    def environment(self, user: str) -> dict[str, str]:
        """Return the environment of a client with the user's ticket."""
        return self.realm.ticket(user, self.keytabs[user])

    def logins(self) -> list[str]:
        """Return the audit log's lines on logins."""
        lines = self.broker.log_path.read_text().splitlines()
        return [line for line in lines if '"event": "login' in line]


class KerberosBroker(TidelogProcess):
    """A broker that finds the realm."""

    def __init__(self, directory: Path, texts: dict[str, str], variables: dict[str, str]) -> None:
        super().__init__(directory, texts)
        self._variables = variables

    def environment(self) -> dict[str, str]:
        return super().environment() | self._variables


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("kerberos")
    with Realm(directory) as realm:
        world = World(directory, realm)
        with world.broker:
            yield world


class RefusedError(Exception):
    """A client's own words when it may not come in."""


def by_kcat(world: World, listener: str, user: str, topic: str) -> list[bytes]:
    """Produce and read by librdkafka with Cyrus SASL, which runs kinit itself."""
    kcat = require_tool("kcat", "apt-get install kcat")
    settings = {
        "security.protocol": listener.lower(), "sasl.mechanism": "GSSAPI", "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": user, "sasl.kerberos.keytab": str(world.keytabs[user]),
        "ssl.ca.location": str(world.certificates.authority.certificate),
    }  # fmt: skip
    words = [kcat, "-b", world.addresses[listener], "-t", topic]
    words += [word for key, value in settings.items() for word in ("-X", f"{key}={value}")]
    environment = {**world.realm.environment, "KRB5CCNAME": f"FILE:{world.directory}/kcat-{topic}"}

    def run(*more: str, stdin: bytes = b"") -> bytes:
        done = subprocess.run(
            [*words, *more], input=stdin, capture_output=True, timeout=WAIT_S, check=False, env=environment
        )
        if done.returncode:
            raise RefusedError(done.stderr.decode())
        return done.stdout

    run("-P", "-X", "message.timeout.ms=20000", stdin=b"\n".join(VALUES) + b"\n")
    return run("-C", "-e", "-q", "-o", "beginning").splitlines()


KAFKA_PYTHON = """
import json, sys, warnings
warnings.simplefilter("ignore")
import kafka, kafka.errors
settings, topic, values = json.loads(sys.stdin.read())
producer = kafka.KafkaProducer(**settings)
for value in values:
    producer.send(topic, value.encode(), partition=0).get(60)
producer.close()
consumer = kafka.KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=60000, **settings)
print(json.dumps([message.value.decode() for _, message in zip(values, consumer)]))
consumer.close()
"""
AIOKAFKA = """
import asyncio, json, sys, warnings
warnings.simplefilter("ignore")
import aiokafka, aiokafka.helpers
settings, topic, values = json.loads(sys.stdin.read())
authority = settings.pop("ssl_cafile")
settings["ssl_context"] = aiokafka.helpers.create_ssl_context(cafile=authority)
async def run():
    producer = aiokafka.AIOKafkaProducer(**settings)
    consumer = aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings)
    try:
        await producer.start()
        for value in values:
            await producer.send_and_wait(topic, value.encode(), partition=0)
        await consumer.start()
        return [(await asyncio.wait_for(consumer.getone(), 60)).value.decode() for _ in values]
    finally:
        await producer.stop()
        await consumer.stop()
print(json.dumps(asyncio.run(run())))
"""


def by_python(program: str, world: World, listener: str, user: str, topic: str) -> list[bytes]:
    """Produce and read by a client in Python with the broker's own package; its environment has the ticket."""
    settings = {
        "bootstrap_servers": world.addresses[listener], "security_protocol": listener, "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_service_name": "kafka", "ssl_cafile": str(world.certificates.authority.certificate),
    }  # fmt: skip
    given = json.dumps([settings, topic, [value.decode() for value in VALUES]])
    done = subprocess.run(
        [sys.executable, "-c", program], input=given, capture_output=True, text=True, timeout=WAIT_S, check=False,
        env=world.environment(user),
    )  # fmt: skip
    if done.returncode:
        raise RefusedError(done.stderr)
    return [value.encode() for value in json.loads(done.stdout)]


def by_kafka_python(world: World, listener: str, user: str, topic: str) -> list[bytes]:
    return by_python(KAFKA_PYTHON, world, listener, user, topic)


def by_aiokafka(world: World, listener: str, user: str, topic: str) -> list[bytes]:
    return by_python(AIOKAFKA, world, listener, user, topic)


def by_java(world: World, listener: str, user: str, topic: str) -> list[bytes]:
    properties = {
        "security.protocol": listener, "sasl.mechanism": "GSSAPI", "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": jaas_of(world.keytabs[user], user),
        "ssl.truststore.type": "PEM", "ssl.truststore.location": str(world.certificates.authority.certificate),
    }  # fmt: skip
    config = world.directory / f"{topic}.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    options = (f"-Djava.security.krb5.conf={world.realm.krb5_conf}",)
    server = ["--bootstrap-server", world.addresses[listener], "--topic", topic, "--command-config", str(config)]
    lines = "\n".join(value.decode() for value in VALUES) + "\n"
    producing = [*server, "--command-property", "max.block.ms=20000"]
    done = run_tool(console_producer(), producing, stdin=lines, java_options=options)
    if done.returncode or "AuthenticationException" in done.stdout + done.stderr:
        raise RefusedError(done.stdout + done.stderr)
    consuming = [*server, "--from-beginning", "--max-messages", str(len(VALUES))]
    done = run_tool(CONSOLE_CONSUMER, consuming, java_options=options)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.encode() for line in done.stdout.splitlines()[: len(VALUES)]]  # its log follows


Run = Callable[[World, str, str, str], list[bytes]]
CLIENTS: dict[str, Run] = {"kcat": by_kcat, "kafka-python": by_kafka_python, "aiokafka": by_aiokafka, "java": by_java}
JAVA = pytest.param("java", marks=pytest.mark.java)


@pytest.mark.parametrize("client", ["kcat", "kafka-python", "aiokafka", JAVA])
def test_a_client_with_a_ticket_is_served(world: World, client: str) -> None:
    assert CLIENTS[client](world, "SASL_PLAINTEXT", "ann", f"{client}-clear") == VALUES


@pytest.mark.parametrize("client", ["kcat", "kafka-python"])
def test_a_ticket_is_accepted_over_tls_and_rules_map_its_user(world: World, client: str) -> None:
    assert CLIENTS[client](world, "SASL_SSL", "app/bob", f"{client}-tls") == VALUES
    assert any(f'"user": "app/bob@{REALM}"' in line for line in world.logins())


@pytest.mark.parametrize("client", ["kcat", JAVA])
def test_a_ticket_of_a_principal_that_no_rule_is_for_is_refused_in_the_clients_own_words(
    world: World, client: str
) -> None:
    with pytest.raises(RefusedError, match=r"invalid credentials with SASL mechanism GSSAPI|[Aa]uthentication failed"):
        CLIENTS[client](world, "SASL_PLAINTEXT", "nobody", f"{client}-never")
    assert any("a rule leaves / or @ in the name" in line for line in world.logins())


def test_a_ticket_that_the_keytab_has_no_key_for_is_refused_until_it_has_it(world: World) -> None:
    """The KDC's key of the broker changes; the broker reads the new one without a restart."""
    kept = world.keytab.read_bytes()
    world.realm.add("kafka/localhost")
    renewed = world.keytab.read_bytes()
    world.keytab.write_bytes(kept)
    with pytest.raises(RefusedError):
        by_kcat(world, "SASL_PLAINTEXT", "ann", "changed-never")
    assert any('"event": "login failed"' in line and "GSS failure" in line for line in world.logins())
    world.keytab.write_bytes(renewed)
    assert by_kcat(world, "SASL_PLAINTEXT", "ann", "changed") == VALUES
