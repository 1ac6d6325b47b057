"""Connections to the brokers of a cluster: to any broker, to leaders of partitions, and to coordinators.

A ``Cluster`` uses any bootstrap server that answers, finds leaders by Metadata and coordinators by FindCoordinator, and
keeps one connection per broker until ``close``. An error code of Metadata or FindCoordinator is raised as its
KafkaError, whose ``retriable`` says whether a retry may help; the caller of ``ask`` reads the codes of its response. A
connection that fails raises ClientError. All that sends requests may raise both: a login that is refused and a
malformed response are KafkaErrors. For one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from tidelog.client.connection import PLAIN, Client, ClientError, SettingsError
from tidelog.client.security import Security
from tidelog.client.settings import ClientSettings
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError, LeaderNotAvailableError, UnknownTopicOrPartitionError, error_for_code
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.protocol.schema.fields import Message

GROUP, TRANSACTION = 0, 1
"""Key types of FindCoordinator."""
_METADATA_BY_NAME = 9
"""The newest version of Metadata that is used for leaders."""
_SINGLE_KEY = 3
"""The newest version of FindCoordinator with a single key; from 4 on it has a list."""
_NEWEST = 2**15 - 1
_PAUSE_S = 0.1
_Result = TypeVar("_Result")
_Response = TypeVar("_Response", bound=Message)
Address = tuple[str, int]


def raise_for_code(code: int, what: str, message: str | None = None) -> None:
    """Raise the KafkaError of ``code``, naming ``what``, unless it is 0."""
    if code:
        kind = error_for_code(code)
        raise kind(f"{what}: {message or kind.default_message}")


def version_for(client: Client, request: type[Message], highest: int) -> int:
    """Choose the newest version of a request up to ``highest`` that the broker serves.

    Raises ClientError, KafkaError.
    """
    name, served = ApiKey(request.API_KEY).name, client.api_versions().get(request.API_KEY)
    if served is None:
        raise ClientError(f"{client.bootstrap} does not serve {name}")
    lowest, highest = request.VERSIONS.lowest, min(highest, request.VERSIONS.highest)
    version = min(highest, served[1])
    if version < max(served[0], lowest):
        raise ClientError(f"{client.bootstrap} serves {name} {served[0]} to {served[1]}, not {lowest} to {highest}")
    return version


def ask(client: Client, request: Message, response_type: type[_Response], highest: int) -> _Response:
    """Send a request in the newest version up to ``highest`` that the broker serves. Raises ClientError, KafkaError."""
    return client.send(request, response_type, version_for(client, type(request), highest))


class Cluster:
    """Connections to the brokers of a cluster; a context manager."""

    def __init__(
        self, servers: str, timeout_s: float, security: Security = PLAIN, connect: Callable[[str], Client] | None = None
    ) -> None:
        """Connect to the first of the comma separated ``servers`` that answers; ``connect`` replaces ``Client``.

        Raises the ClientError of the last server. Raises KafkaError, without trying the next server, if one refuses the
        login, as all others would, or sends a malformed response.
        """
        self._timeout_s = timeout_s
        self._connect = partial(Client, timeout_s=timeout_s, security=security) if connect is None else connect
        self._clients: dict[Address, Client] = {}
        self._servers = [server.strip() for server in servers.split(",") if server.strip()]
        self._any = self._first_of(self._servers)
        self._leaders: dict[str, list[Address | None]] = {}

    @classmethod
    def open(cls, settings: ClientSettings) -> Self:
        """Connect with the given settings. Raises ClientError, KafkaError."""
        return cls(settings.bootstrap, settings.timeout_s, settings.security)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._any.close()
        for client in self._clients.values():
            client.close()

    def any_client(self) -> Client:
        """Return the connection to the bootstrap server that answered, a new one if it is broken. Raises ClientError,
        KafkaError."""
        if self._any.is_broken:
            self._any.close()
            self._any = self._first_of(self._servers)
        return self._any

    def ask(self, request: Message, response_type: type[_Response], highest: int = _NEWEST) -> _Response:
        """Send a request to any broker, in the newest version up to ``highest`` that both know. Raises ClientError,
        KafkaError."""
        return ask(self.any_client(), request, response_type, highest)

    def brokers(self) -> dict[int, Address]:
        """Return the addresses of all brokers, by node id. Raises ClientError, KafkaError."""
        answer = self.ask(MetadataRequest(topics=[]), MetadataResponse)
        return {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}

    def retry_until_settled(self, attempt: Callable[[], _Result]) -> _Result:
        """Return the result of ``attempt``, which is repeated within the timeout after a retriable KafkaError, but not
        after a ClientError.

        Raises ClientError, KafkaError.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return attempt()
            except KafkaError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
            self.forget_leaders()
            time.sleep(_PAUSE_S)

    def forget_leaders(self) -> None:
        """Forget the known leaders, of which one may have moved: the next use asks a broker again."""
        self._leaders.clear()

    def ensure_topic(self, topic: str) -> None:
        """Wait until a topic exists; a missing one is created if the broker allows it, as for a producer.

        Raises ClientError, KafkaError.
        """
        self.retry_until_settled(lambda: self._known_leaders(topic, create=True))

    def leaders(self, topic: str, *, create: bool = False) -> list[Address]:
        """Return the address of each partition's leader, by partition.

        With ``create`` a missing topic is created if the broker allows it, as for a producer. Raises ClientError,
        KafkaError (retriable while the topic does not exist or a partition has no leader).
        """
        found = self._known_leaders(topic, create)
        leaders = [one for one in found if one is not None]
        without = [number for number, one in enumerate(found) if one is None]
        if without:
            del self._leaders[topic]
            raise LeaderNotAvailableError(f"topic {topic}: partitions {without} have no leader")
        return leaders

    def partition_count(self, topic: str) -> int:
        """Return the number of a topic's partitions, with and without leaders. Raises ClientError, KafkaError."""
        return len(self._known_leaders(topic))

    def leader(self, topic: str, partition: int) -> Address:
        """Return the address of one partition's leader, even if other partitions have none.

        Raises what ``leaders`` raises.
        """
        ensure_partition(self, topic, partition)
        found = self._leaders[topic][partition]
        if found is None:
            del self._leaders[topic]
            raise LeaderNotAvailableError(f"topic {topic}: partition {partition} has no leader")
        return found

    def client_for(self, address: Address) -> Client:
        """Return the connection to a broker, a new one if the last is broken. Raises ClientError, KafkaError."""
        client = self._clients.get(address)
        if client is not None and client.is_broken:
            client.close()
            client = None
        if client is None:
            host, port = address
            client = self._clients[address] = self._connect(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        return client

    def coordinator(self, key: str, key_type: int) -> Client:
        """Return the connection to the coordinator of a group or transactional id. Raises ClientError, KafkaError."""
        request = FindCoordinatorRequest(key=key, key_type=key_type)
        answer = self.ask(request, FindCoordinatorResponse, _SINGLE_KEY)
        raise_for_code(answer.error_code, f"coordinator of {key}", answer.error_message)
        return self.client_for((answer.host, answer.port))

    def _first_of(self, servers: Iterable[str]) -> Client:
        failure: ClientError = SettingsError("no bootstrap server is given: expected HOST:PORT")
        for server in servers:
            try:
                return self._connect_to(server)
            except ClientError as error:
                failure = error
        raise failure

    def _connect_to(self, server: str) -> Client:
        """Connect to a broker that answers. Raises ClientError, KafkaError."""
        client = self._connect(server)
        try:
            client.api_versions()
        except (ClientError, KafkaError):
            client.close()
            raise
        return client

    def _known_leaders(self, topic: str, create: bool = False) -> list[Address | None]:
        """Return the leader of each partition, None for a partition without one. Raises what ``leaders`` raises."""
        if topic not in self._leaders:
            self._leaders[topic] = self._ask_leaders(topic, create)
        return self._leaders[topic]

    def _ask_leaders(self, topic: str, create: bool) -> list[Address | None]:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=create)
        answer = self.ask(request, MetadataResponse, _METADATA_BY_NAME)
        (found,) = answer.topics
        raise_for_code(found.error_code, f"topic {topic}")
        addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        partitions = sorted(found.partitions, key=lambda partition: partition.partition_index)
        if not partitions:
            raise LeaderNotAvailableError(f"topic {topic} has no partitions yet")
        return [addresses.get(entry.leader_id) for entry in partitions]


#: Errors of a request; ``is_passing`` tells whether a retry may help.
Trouble = (ClientError, KafkaError)


def is_passing(error: Exception) -> bool:
    """Return whether a retry may help: after a ClientError, which may be a failed connection, or an error that Kafka
    calls retriable."""
    return isinstance(error, ClientError) or (isinstance(error, KafkaError) and error.retriable)


def ensure_partition(cluster: Cluster, topic: str, partition: int) -> None:
    """Ensure that a topic has a partition, with or without a leader. Raises ClientError, KafkaError."""
    count = cluster.partition_count(topic)
    if partition >= count:
        raise UnknownTopicOrPartitionError(f"topic {topic} has {count} partitions, there is no {partition}")
