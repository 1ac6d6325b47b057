"""A cluster with TLS, logins and Kafka's authorizer: a controller and a broker of Apache Kafka, two Tidelog brokers.

``Way`` chooses who logs in how. The controller's listener takes PLAIN over TLS, or client certificates; the listener
between brokers takes SCRAM-SHA-512 over TLS, or client certificates. Each broker also has a listener without security
for the test, whose ``User:ANONYMOUS`` is a super user.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.rivals.process import free_port
from tests.support.certificates import Authority
from tests.support.kraft_node import HOST, KraftNode, ports_of_controllers, wait_until
from tests.support.member import MemberNode
from tests.support.secured_clients import Security
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER

CONTROLLER, JAVA, MEMBER, SECOND = 1, 2, 101, 102
"""Node ids: the controller and the broker of Apache Kafka, and the two Tidelog brokers."""
SECRET = "{}-secret"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


def name_of(node_id: int) -> str:
    """Return the user that a node logs in as."""
    return {CONTROLLER: "controller", JAVA: "java"}.get(node_id, f"tide-{node_id}")


class Way(NamedTuple):
    """Protocols of the controller's listener and of the one between brokers: SASL_SSL, or SSL with certificates."""

    controllers: str
    brokers: str

    def principals(self, name: str) -> set[str]:
        """Return the principals that a node of this name has on the two listeners."""
        return {f"User:{name}" if one == "SASL_SSL" else f"User:CN={name}" for one in self}

    def keys(self, name: str) -> dict[str, str]:
        """Return the configuration of the logins of the node of this name, without its key and trust store."""
        own = f'username="{name}" password="{SECRET.format(name)}"'
        users = " ".join(
            f'user_{one}="{SECRET.format(one)}"' for one in map(name_of, (CONTROLLER, JAVA, MEMBER, SECOND))
        )
        sasl = {
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.controller.plain.sasl.jaas.config": f"{PLAIN} {own} {users};",
        }
        scram = {
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "listener.name.brokers.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.brokers.scram-sha-512.sasl.jaas.config": f"{SCRAM} {own};",
        }
        return {
            **(sasl if self.controllers == "SASL_SSL" else {"listener.name.controller.ssl.client.auth": "required"}),
            **(scram if self.brokers == "SASL_SSL" else {"listener.name.brokers.ssl.client.auth": "required"}),
        }

    def client(self, name: str, authority: Authority) -> Security:
        """Return the settings of a client that connects to a broker's secured listener as this user."""
        ca = authority.certificate
        if self.brokers == "SSL":
            return Security("SSL", ca, authority.issue(name, f"/CN={name}"))
        return Security("SASL_SSL", ca, mechanism="SCRAM-SHA-512", user=name, password=SECRET.format(name))


class SecuredController(KraftNode):
    """A controller that is ready once a TLS handshake with it succeeds."""

    def wait_until_ready(self, deadline: float) -> None:
        wait_until(self._shakes_hands, f"a controller that answers\n{self.output()}")

    def _shakes_hands(self) -> bool:
        try:
            ssl.get_server_certificate((HOST, self.port), timeout=5)
        except OSError:
            return False
        return True


class SecuredCluster:
    """The nodes, not started. Kafka's broker and controller are super users; Tidelog's need ClusterAction by ACL."""

    def __init__(self, directory: Path, way: Way, settings: Mapping[str, str]) -> None:
        self.way = way
        self.authority = Authority(directory)
        ports = ports_of_controllers(1)
        self.controller = SecuredController(directory, CONTROLLER, ports, overrides=settings, in_shared_jvm=True)
        self.java = KraftNode(directory, JAVA, ports, is_broker=True, overrides=settings, in_shared_jvm=True)
        self.member, self.second = (MemberNode(directory, one, ports, settings) for one in (MEMBER, SECOND))
        self.controller.overrides |= {
            **self._keys(CONTROLLER),
            "listener.security.protocol.map": f"CONTROLLER:{way.controllers}",
        }
        self.secured_ports: dict[int, int] = {}
        self.nodes: dict[int, KraftNode | MemberNode] = {JAVA: self.java, MEMBER: self.member, SECOND: self.second}
        for node_id, node in self.nodes.items():
            self.secured_ports[node_id] = free_port()
            node.overrides |= {
                **self._keys(node_id),
                "listeners": f"PLAINTEXT://{HOST}:{node.port},BROKERS://{HOST}:{self.secured_ports[node_id]}",
                "listener.security.protocol.map": (
                    f"PLAINTEXT:PLAINTEXT,BROKERS:{way.brokers},CONTROLLER:{way.controllers}"
                ),
                "inter.broker.listener.name": "BROKERS",
            }

    def _keys(self, node_id: int) -> dict[str, str]:
        name = name_of(node_id)
        supers = {"User:ANONYMOUS", *self.way.principals(name_of(CONTROLLER)), *self.way.principals(name_of(JAVA))}
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.authority.issue(name, f"/CN={name}").pem),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.certificate),
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": ";".join(sorted(supers)),
            **self.way.keys(name),
        }

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers' listeners without security."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    def client(self, node_id: int, name: str) -> dict[str, Any]:
        """Return librdkafka's settings to connect to a broker's secured listener as user ``name``."""
        security = self.way.client(name, self.authority)
        return {"bootstrap.servers": f"{HOST}:{self.secured_ports[node_id]}", **security.librdkafka()}
