"""The examples of docs/security.md, run unchanged in their order, in a directory of their own.

Ports and the paths of /etc, which a test cannot have, are replaced. ``kafka-*.sh`` are Kafka's own tools. Each example
is in ``EXAMPLES``, by its first line; a new one of the page has to be put there, with a test that uses it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.broker import free_port
from tests.support.issuer import Endpoint, Issuer
from tests.support.kafka_scripts import write_scripts
from tests.support.kdc import REALM, Realm
from tests.support.requirements import require_tool
from tidelog.broker_process import clean_environment

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text()
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORTS = ("9092", "9093", "9094", "9644")
WAIT_S = 120
KCAT = ("kcat", "apt-get install kcat")
OPERATOR = "CN=operator,O=Tidelog"
EXAMPLES = {
    "certificate": "openssl req -x509",
    "serve": "tidelog serve --override listeners=SSL",
    "kcat": "echo hello | kcat -b localhost:9093",
    "new keystore": "kafka-configs.sh --bootstrap-server localhost:9092 --entity-type brokers",
    "listeners": "listeners=INTERNAL",
    "principal rule": "ssl.principal.mapping.rules",
    "plain": "listeners=SASL_SSL://127.0.0.1:9094\nsasl.enabled.mechanisms=PLAIN",
    "plain kcat": "echo hello | kcat -b localhost:9094",
    "scram": "node.id=1",
    "format": "CLUSTER_ID=",
    "admin profile": "bootstrap.servers=localhost:9094\nsecurity.protocol=SASL_SSL\nssl.truststore.type=PEM\n"
    "ssl.truststore.location=server.crt\nsasl.mechanism=SCRAM-SHA-512\nsasl.username",
    "user": "echo secret | tidelog user create",
    "user by kafka": "kafka-configs.sh --bootstrap-server localhost:9094",
    "bearer": "listeners=SASL_SSL://127.0.0.1:9094\nsasl.enabled.mechanisms=OAUTHBEARER",
    "kerberos": "listeners=SASL_SSL://0.0.0.0:9094",
    "kerberos rules": "sasl.kerberos.principal.to.local.rules",
    "token key": "delegation.token.secret.key",
    "token": "kafka-delegation-tokens.sh",
    "secret": "ssl.keystore.password=${dir",
    "audit line": '{"event": "login failed"',
    "profile": "bootstrap.servers=localhost:9094\nsecurity.protocol=SASL_SSL\nssl.truststore.type=PEM\n"
    "ssl.truststore.location=server.crt\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas",
    "authorizer": "authorizer.class.name",
    "acl": "tidelog acl create",
    "acl by kafka": "kafka-acls.sh",
    "denial": "Principal = User:bob",
    "curl": "curl --cacert",
    "admin token": "tidelog admin token create",
}
"""Name -> how the example begins."""


def example(name: str) -> str:
    """Return the one example of this name."""
    (found,) = (text for _, text in FENCE.findall(PAGE) if text.startswith(EXAMPLES[name]))
    return str(found)


def test_each_example_is_named_and_used_here() -> None:
    used = re.findall(r'example\("([\w ]+)"\)', Path(__file__).read_text())
    assert sorted(set(used)) == sorted(EXAMPLES)
    assert len(FENCE.findall(PAGE)) == len(EXAMPLES)
    for name in EXAMPLES:
        assert example(name)


class Desk:
    """A directory in which a reader of the guide works, with ports of his own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ports = {port: str(free_port()) for port in PORTS}
        tools = write_scripts(directory / "bin")
        path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**clean_environment(), "PATH": path, "HOME": str(directory)}

    def own(self, text: str) -> str:
        """Put this desk's ports and paths into an example."""
        text = re.sub("|".join(rf"(?<=:){port}\b" for port in PORTS), lambda found: self._ports[found[0]], text)
        return re.sub(r"/etc/tidelog|/run/secrets", str(self.directory), text)

    def write(self, name: str, *texts: str) -> None:
        """Write a file of this directory."""
        (self.directory / name).write_text("".join(self.own(text) for text in texts))

    def run(self, text: str) -> str:
        """Run commands that must end with 0; what they print."""
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.own(text)], capture_output=True, text=True, timeout=WAIT_S,
            cwd=self.directory, env=self.environment, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr + self.log()
        return ended.stdout

    def log(self) -> str:
        """Return what the broker wrote so far."""
        path = self.directory / "broker.log"
        return path.read_text() if path.exists() else ""

    @contextmanager
    def serving(self, text: str, port: str) -> Iterator[None]:
        """Run the last command of ``text``, which serves on this port of the guide, until the end of the block."""
        command = self.own(text).replace("tidelog serve", "exec tidelog serve")
        with (self.directory / "broker.log").open("w") as log:
            broker = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", command], cwd=self.directory, env=self.environment, stdout=log,
                stderr=log,
            )  # fmt: skip
        try:
            self._wait_for(broker, int(self._ports[port]))
            yield
        finally:
            broker.terminate()
            broker.wait(WAIT_S)

    def _wait_for(self, broker: subprocess.Popen[bytes], port: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            assert broker.poll() is None, self.log()
            with socket.socket() as tried:
                if not tried.connect_ex(("127.0.0.1", port)):
                    return
            time.sleep(0.05)
        raise AssertionError(self.log())


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk with the certificate of the guide."""
    require_tool(*KCAT)
    require_tool("openssl", "apt-get install openssl")
    desk = Desk(tmp_path)
    desk.run(example("certificate"))
    return desk


SERVE = "tidelog serve --config server.properties"
STORE = "ssl.keystore.type=PEM\nssl.keystore.location=server.pem\nlog.dirs=data\n"


def test_a_tls_listener_in_five_minutes(desk: Desk) -> None:
    with desk.serving(example("serve") + " --override log.dirs=data", "9093"):
        assert desk.run(example("kcat")) == "hello\n"


@pytest.mark.java
def test_a_keystore_is_changed_by_kafkas_tool(desk: Desk) -> None:
    desk.run("cp server.pem new.pem")
    desk.write("server.properties", STORE, "node.id=1\nlisteners=PLAINTEXT://127.0.0.1:9092,SSL://127.0.0.1:9093\n")
    with desk.serving(SERVE, "9093"):
        assert "Completed updating" in desk.run(example("new keystore"))
        assert desk.run(example("kcat")) == "hello\n"


def test_several_listeners_have_values_of_their_own(desk: Desk) -> None:
    desk.run("mv server.pem public.pem")
    desk.write("server.properties", "log.dirs=data\n", example("listeners").replace("10.0.0.5", "127.0.0.1"))
    with desk.serving(SERVE, "9093"):
        assert desk.run(example("kcat")) == "hello\n"


def test_a_certificate_names_the_user(desk: Desk) -> None:
    """Only ``User:ann`` may write: the rule makes it of the subject."""
    desk.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 9 -subj /C=DE/O=Tidelog/CN=Ann"
        " -keyout ann.key -out ann.crt"
    )
    more = "ssl.client.auth=required\nssl.truststore.type=PEM\nssl.truststore.location=ann.crt\nsuper.users=User:ann\n"
    authorizer = example("authorizer").splitlines()[0] + "\n"
    desk.write(
        "server.properties", STORE, "listeners=SSL://127.0.0.1:9093\n", more, authorizer, example("principal rule")
    )
    with desk.serving(SERVE, "9093"):
        own = "-X ssl.certificate.location=ann.crt -X ssl.key.location=ann.key -X ssl.ca.location"
        assert desk.run(example("kcat").replace("-X ssl.ca.location", own)) == "hello\n"


def test_a_keystores_password_out_of_a_file(desk: Desk) -> None:
    desk.run("openssl pkcs12 -export -in server.pem -out server.p12 -passout pass:word; echo word > keystore-password")
    store = "ssl.keystore.location=server.p12\nlisteners=SSL://127.0.0.1:9093\nlog.dirs=data\n"
    desk.write("server.properties", store, example("secret"))
    with desk.serving(SERVE, "9093"):
        assert desk.run(example("kcat")) == "hello\n"


def test_a_user_of_plain(desk: Desk) -> None:
    desk.write("server.properties", STORE, example("plain"))
    with desk.serving(SERVE, "9094"):
        desk.run(example("plain kcat"))
        wrong = example("plain kcat").replace("password=secret", "password=no")
        desk.run("! " + wrong.replace("-P", "-X message.timeout.ms=2000 -P"))
        (line,) = {json.dumps(line) for line in audit_lines(desk) if line["event"] == "login failed"}
    line_fields, shown = json.loads(line), json.loads(example("audit line"))
    assert line_fields.keys() == shown.keys()
    assert {**shown, "address": "127.0.0.1"} == line_fields


def audit_lines(desk: Desk) -> list[dict[str, str]]:
    """Return the lines of the audit log."""
    return [json.loads(line[line.index("{") :]) for line in desk.log().splitlines() if "tidelog.audit" in line]


@pytest.mark.java
def test_users_acls_and_tokens(desk: Desk) -> None:
    """The first user of SCRAM, further ones, what they may do, their tokens, and the admin interface."""
    admin = "admin.listener=127.0.0.1:9644\nadmin.ssl.keystore.type=PEM\nadmin.ssl.keystore.location=server.pem\n"
    assert example("authorizer").splitlines()[0] in example("scram")
    desk.write("server.properties", example("scram"), example("token key"), admin, "admin.tokens.file=admin.tokens\n")
    desk.run(example("admin token"))
    with desk.serving(example("format"), "9094"):
        desk.write("admin.properties", example("admin profile"))
        assert "ann" in desk.run(example("user"))
        password = (desk.directory / "admin.password").read_text().strip()
        by_kafka = example("profile").replace('"ann"', '"admin"').replace('"secret"', f'"{password}"')
        desk.write("ann.properties", example("profile"))
        desk.run("tidelog topic create orders --profile admin.properties")
        desk.run("! tidelog topic list --profile ann.properties | grep orders")
        desk.run("! echo x | tidelog produce orders --profile ann.properties")
        denied = example("denial").replace("bob", "ann").partition("operation")[0]
        assert denied in desk.log()
        assert "User:ann" in desk.run(example("acl"))
        desk.write("admin.properties", by_kafka)
        desk.run(example("user by kafka"))
        assert "User:ann" in desk.run(example("acl by kafka"))
        desk.run("echo x | tidelog produce orders --profile ann.properties")
        assert "User:ann" in desk.run(example("token"))
        of_all = "--cluster --operation describe"
        desk.run(f"tidelog acl create --profile admin.properties --allow-principal User:ann {of_all}")
        assert "tidelog_" in desk.run(example("curl"))


def test_bearer_tokens(desk: Desk) -> None:
    issuer = Issuer()
    issuer.key("es256")
    with Endpoint(issuer) as endpoint:
        given = example("bearer").replace("https://issuer.example/keys", endpoint.url)
        desk.write("server.properties", STORE, given)
        with desk.serving(SERVE, "9094"):
            produce_by_token(desk, issuer.token(iss="https://issuer.example"))
    assert '"user": "ann"' in desk.log()


def produce_by_token(desk: Desk, token: str) -> None:
    """Write a record, as a client who shows a token."""
    producer = Producer({
        "bootstrap.servers": desk.own("localhost:9094"), "security.protocol": "sasl_ssl",
        "sasl.mechanism": "OAUTHBEARER", "ssl.ca.location": str(desk.directory / "server.crt"),
        "oauth_cb": lambda _: (token, time.time() + 300),
    })  # fmt: skip
    producer.produce("greetings", b"hello")
    deadline = time.monotonic() + WAIT_S
    while producer.flush(0.2) and time.monotonic() < deadline:
        pass
    assert not len(producer), desk.log()


def test_kerberos(desk: Desk) -> None:
    """Only ``User:app-ann`` may write: the rules make it of app/app-ann."""
    with Realm(desk.directory) as realm:
        keytab, ann = realm.add("kafka/localhost"), realm.add("app/app-ann")
        (desk.directory / "kafka.keytab").write_bytes(keytab.read_bytes())
        given = example("kerberos") + example("kerberos rules")
        given += example("authorizer").splitlines()[0] + "\nsuper.users=User:app-ann\n"
        given = given.replace("broker.example.com", "localhost").replace("EXAMPLE.COM", REALM)
        desk.write("server.properties", STORE, given)
        desk.environment |= {name: value for name, value in realm.environment.items() if name.startswith("KRB5")}
        with desk.serving(SERVE, "9094"):
            login = (
                "-X security.protocol=sasl_ssl -X sasl.mechanism=GSSAPI -X ssl.ca.location=server.crt"
                f" -X sasl.kerberos.principal=app/app-ann -X sasl.kerberos.keytab={ann}"
            )
            desk.run(f"echo hello | kcat -b localhost:9094 {login} -P -t greetings")
