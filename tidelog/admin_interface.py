"""The client of a broker's admin interface: its address, and TLS and login by the client's profile.

The broker returns the address (DescribeConfigs, ``admin.listener``). The profile's password or bearer token is sent
only where no one else can read it: over TLS, or to this machine.
"""

from __future__ import annotations

import base64
import ipaddress
from typing import Any, NamedTuple

from tidelog.client import Client, ClientError, parse_bootstrap
from tidelog.client.cluster import Cluster
from tidelog.client.sasl.bearer import BearerCredentials
from tidelog.client.security import Security
from tidelog.client.settings import ClientSettings
from tidelog.protocol.errors import error_for_code
from tidelog.protocol.foreign_text import decode_json
from tidelog.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

LISTENER_KEY = "admin.listener"
KEYSTORE_KEYS = ["admin.ssl.keystore.location", "admin.ssl.keystore.key"]
BROKER_RESOURCE = 4
DEFAULT_SOURCE = 5
CONNECT_S = 10.0
UNAUTHORIZED = 401
ANY_HOST = ("", "0.0.0.0", "::")


class AdminInterface(NamedTuple):
    """Address of a broker's admin interface, and whether it uses TLS."""

    host: str
    port: int
    is_encrypted: bool

    def ask(self, security: Security, method: str, path: str, timeout_s: float) -> tuple[int, Any]:
        """Send one request; return (status, JSON). Raises ClientError, OSError."""
        from http.client import HTTPConnection, HTTPException, HTTPSConnection

        connect_s = min(CONNECT_S, timeout_s)
        connection = (
            HTTPSConnection(self.host, self.port, timeout=connect_s, context=security.context())
            if self.is_encrypted
            else HTTPConnection(self.host, self.port, timeout=connect_s)
        )
        try:
            connection.connect()
            connection.sock.settimeout(timeout_s)
            connection.request(method, path, headers=login_headers(self, security))
            response = connection.getresponse()
            if response.status == UNAUTHORIZED:
                raise ClientError(self._explain_refusal(security))
            return response.status, decode_json(response.read())
        except (HTTPException, ValueError, BrokenPipeError) as error:
            where = f"{self.host}:{self.port}"
            raise ClientError(f"the admin interface at {where} sent no valid response: {error}") from error
        finally:
            connection.close()

    def _explain_refusal(self, security: Security) -> str:
        """Explain why the interface refused a request without a valid login."""
        where = f"the admin interface at {self.host}:{self.port}"
        if security.credentials is None:
            return f"{where} requires a login: expected a profile with security.protocol=SASL_... and a user or a token"
        if not login_headers(self, security):
            return f"{where} requires a login, which is sent only over TLS (admin.ssl.keystore.location)"
        return f"{where} refused the login of the profile"


def parse_admin(text: str) -> AdminInterface:
    """Parse the interface at HOST:PORT, or https://HOST:PORT. Raises ValueError."""
    address = text.removeprefix("https://")
    host, _, port = address.rpartition(":")
    return AdminInterface(host.strip("[]"), int(port), is_encrypted=address != text)


def find_admin(settings: ClientSettings) -> AdminInterface:
    """Ask a broker for the address of its admin interface. Raises ClientError; KafkaError, for example
    if the user may not ask."""
    with Cluster.open(settings) as cluster:
        return ask_admin_address(cluster)


def ask_admin_address(cluster: Cluster) -> AdminInterface:
    """Ask the broker that ``choose_broker`` chooses for the address of its admin interface. Raises ClientError,
    KafkaError."""
    node, client = choose_broker(cluster)
    resource = DescribeConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name=str(node), configuration_keys=[LISTENER_KEY, *KEYSTORE_KEYS]
    )
    (result,) = client.call(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse).results
    if result.error_code:
        kind = error_for_code(result.error_code)
        reason = result.error_message or kind.default_message
        raise kind(f"address of the admin interface, which needs DESCRIBE_CONFIGS of the cluster: {reason}")
    entries = {entry.name: entry for entry in result.configs}
    address = entries[LISTENER_KEY].value if LISTENER_KEY in entries else None
    if not address:
        raise ClientError(f"{client.bootstrap} has no admin interface ({LISTENER_KEY})")
    is_encrypted = any(key in entries and entries[key].config_source != DEFAULT_SOURCE for key in KEYSTORE_KEYS)
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return AdminInterface(parse_bootstrap(client.bootstrap)[0] if host in ANY_HOST else host, int(port), is_encrypted)


def choose_broker(cluster: Cluster) -> tuple[int, Client]:
    """Choose a broker; return its node id and a connection to it. Raises ClientError, KafkaError.

    A broker describes only its own configuration. The bootstrap server is chosen if its address tells which broker it
    is, or if there is only one; otherwise the broker with the lowest id.
    """
    client, brokers = cluster.any_client(), cluster.brokers()
    address = parse_bootstrap(client.bootstrap)
    for node, advertised in sorted(brokers.items()):
        if advertised == address or len(brokers) == 1:
            return node, client
    node = min(brokers)
    return node, cluster.client_for(brokers[node])


def login_headers(interface: AdminInterface, security: Security) -> dict[str, str]:
    """Return the header with the profile's password or token; none if it has neither, or others could read it. Raises
    ClientError."""
    credentials = security.credentials
    if credentials is None or not (interface.is_encrypted or is_this_machine(interface.host)):
        return {}
    if isinstance(credentials, BearerCredentials):
        return {"Authorization": f"Bearer {credentials.fetch_token()}"}
    login = base64.b64encode(f"{credentials.user}:{credentials.password}".encode()).decode()
    return {"Authorization": f"Basic {login}"}


def is_this_machine(host: str) -> bool:
    """Return whether an address is a loopback address or ``localhost``. Other names are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
