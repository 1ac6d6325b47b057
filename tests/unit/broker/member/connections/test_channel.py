"""A member's connection to a node with encryption and authentication: which peers are accepted, and what errors say."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.certificates import Certificates
from tidelog.broker.cluster.quorum import Address
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.controller.clients.scram_credentials import ScramMechanism, derive
from tidelog.broker.member.connections import channel as channel_module
from tidelog.broker.member.connections.channel import Channel, ChannelError
from tidelog.broker.member.connections.security import PeerSecurity, broker_security, controller_security
from tidelog.broker.metadata.metadata_image import ScramState
from tidelog.broker.security.sasl.authenticator import PASS_ON, SaslAuthenticator, State, encode
from tidelog.broker.security.sasl.listener import SaslListener
from tidelog.broker.security.tls.listener import TlsListener
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.header import decode_request_header
from tidelog.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from tidelog.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidelog.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopicResponse

PLAIN_USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="tide" password="s3a" {};'
SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="tide" password="s3a";'
BASIC = {
    "process.roles": "broker",
    "node.id": "7",
    "controller.quorum.bootstrap.servers": "localhost:1",
    "controller.listener.names": "CONTROLLER",
    "listeners": "BROKERS://localhost:9092",
    "inter.broker.listener.name": "BROKERS",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.controller.plain.sasl.jaas.config": PLAIN_USERS.format(""),
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
    "listener.name.brokers.scram-sha-512.sasl.jaas.config": SCRAM,
}
REQUEST = AllocateProducerIdsRequest(broker_id=7, broker_epoch=1)
CREDENTIAL = derive(ScramMechanism.SCRAM_SHA_512, 4096, b"salt", hashlib.pbkdf2_hmac("sha512", b"s3a", b"salt", 4096))


class Node:
    """A node with one secured listener, which answers AllocateProducerIds with the number of its connections."""

    def __init__(self, protocol: str, texts: Mapping[str, str]) -> None:
        self._context = TlsListener("NODE", texts).context if protocol.endswith("SSL") else None
        self._sasl = SaslListener("NODE", texts, self._look_up) if protocol.startswith("SASL") else None
        self.connections = 0
        self.address = Address("localhost", 0)
        self._channels: list[Channel] = []
        self._served: list[asyncio.Task[Any]] = []
        self._writers: list[asyncio.StreamWriter] = []

    @staticmethod
    def _look_up(user: str, mechanism: ScramMechanism) -> ScramState | None:
        return CREDENTIAL if (user, mechanism) == ("tide", ScramMechanism.SCRAM_SHA_512) else None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.address = Address("localhost", self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for channel in self._channels:
            channel.close()
        await asyncio.gather(*self._served, return_exceptions=True)

    def channel(self, security: PeerSecurity) -> Channel:
        """Open a channel, and close it before the node is closed."""
        self._channels.append(Channel(30.0, security))
        return self._channels[-1]

    def disconnect(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        task = asyncio.current_task()
        assert task is not None
        self._served.append(task)
        exchange = None if self._sasl is None else self._sasl.authenticate()
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = memoryview(await reader.readexactly(size))
                writer.write(self._answer(exchange, frame))
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    def _answer(self, exchange: SaslAuthenticator | None, frame: memoryview) -> bytes:
        if exchange is not None and exchange.state is not State.COMPLETE:
            outcome = exchange.receive(frame)
            if outcome is not PASS_ON:
                return outcome.frame or b""
        header, _ = decode_request_header(frame)
        if header.api_key == ApiKey.API_VERSIONS:
            served = [ApiVersion(api_key=ApiKey.ALLOCATE_PRODUCER_IDS, min_version=0, max_version=0)]
            return encode(header, ApiVersionsResponse(api_keys=served))
        return encode(header, AllocateProducerIdsResponse(producer_id_start=self.connections))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def texts_of(protocol: str, certificates: Certificates, **texts: str) -> dict[str, str]:
    """Return the server.properties of a member; ``texts`` are further keys, with ``__`` for dots."""
    stores = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority.certificate),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.client.pem),
    }
    protocols = {"listener.security.protocol.map": f"BROKERS:{protocol},CONTROLLER:{protocol}"}
    return {**BASIC, **stores, **protocols, **{key.replace("__", "."): text for key, text in texts.items()}}


def node_texts(certificates: Certificates, **texts: str) -> dict[str, str]:
    return {
        **certificates.server_texts(ssl_client_auth="required"),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.node.plain.sasl.jaas.config": PLAIN_USERS.format('user_tide="s3a"'),
        **{key.replace("__", "."): text for key, text in texts.items()},
    }


async def ask(channel: Channel, node: Node) -> int:
    """Return the number of the node's connection that answered."""
    return (await channel.ask(node.address, REQUEST, AllocateProducerIdsResponse)).producer_id_start


@pytest.mark.parametrize("side", [controller_security, broker_security])
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
async def test_each_security_protocol_reaches_brokers_and_controllers(
    protocol: str, side: Callable[[BrokerConfig], PeerSecurity], certificates: Certificates
) -> None:
    security = side(BrokerConfig(texts_of(protocol, certificates)))
    async with Node(protocol, node_texts(certificates)) as node:
        channel = node.channel(security)
        assert [await ask(channel, node) for _ in range(2)] == [1, 1]


@pytest.mark.parametrize(
    ("protocol", "own", "theirs", "message"),
    [
        ("SSL", {"ssl__truststore__location": "STRANGER"}, {}, "CERTIFICATE_VERIFY_FAILED|certificate verify failed"),
        ("SSL", {}, {"ssl__keystore__location": "ELSEWHERE"}, "Hostname mismatch"),
        ("SASL_PLAINTEXT", {}, {"sasl__enabled__mechanisms": "SCRAM-SHA-512"}, "does not accept PLAIN; it accepts"),
        (
            "SASL_PLAINTEXT",
            {"listener__name__controller__plain__sasl__jaas__config": PLAIN_USERS.format("").replace("s3a", "wrong")},
            {},
            "refuses the login of tide: Authentication failed",
        ),
    ],
)
async def test_security_settings_that_do_not_fit_are_one_line(
    protocol: str, own: dict[str, str], theirs: dict[str, str], message: str, certificates: Certificates
) -> None:
    elsewhere = certificates.authority.issue("elsewhere", "/CN=elsewhere", hosts="DNS:elsewhere")
    files = {"STRANGER": str(certificates.directory / "stranger.crt"), "ELSEWHERE": str(elsewhere.pem)}
    own, theirs = ({key: files.get(text, text) for key, text in texts.items()} for texts in (own, theirs))
    security = controller_security(BrokerConfig(texts_of(protocol, certificates, **own)))
    async with Node(protocol, node_texts(certificates, **theirs)) as node:
        with pytest.raises(ChannelError, match=message) as refused:
            await ask(node.channel(security), node)
    assert "wrong" not in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_a_member_without_a_certificate_is_refused(certificates: Certificates) -> None:
    texts = texts_of("SSL", certificates)
    del texts["ssl.keystore.location"]
    async with Node("SSL", node_texts(certificates)) as node:
        with pytest.raises(ChannelError):
            await ask(node.channel(controller_security(BrokerConfig(texts))), node)


async def test_a_name_is_not_checked_where_the_key_says_so(certificates: Certificates) -> None:
    elsewhere = certificates.authority.issue("unnamed", "/CN=elsewhere", hosts="DNS:elsewhere")
    own = texts_of("SSL", certificates, ssl__endpoint__identification__algorithm="")
    async with Node("SSL", node_texts(certificates, ssl__keystore__location=str(elsewhere.pem))) as node:
        assert await ask(node.channel(controller_security(BrokerConfig(own))), node) == 1


async def test_a_session_that_ends_is_begun_again_on_another_connection(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka closes a connection whose session has expired (KIP-368): the next request must not be lost because of
    that."""
    monkeypatch.setattr("tidelog.broker.member.connections.channel.SESSION_SHARE", 0.0)
    security = controller_security(BrokerConfig(texts_of("SASL_PLAINTEXT", certificates)))
    async with Node("SASL_PLAINTEXT", node_texts(certificates, connections__max__reauth__ms="3600000")) as node:
        channel = node.channel(security)
        assert [await ask(channel, node) for _ in range(2)] == [1, 2]


async def test_a_connection_that_the_node_has_closed_is_opened_again() -> None:
    """Brokers close idle connections (connections.max.idle.ms): the next request must not fail because of that."""
    async with Node("PLAINTEXT", {}) as node:
        channel = node.channel(PeerSecurity("NODE"))
        assert await ask(channel, node) == 1
        assert channel._connection is not None
        node.disconnect()
        async with asyncio.timeout(30):
            while not channel._connection.link.is_closed:  # noqa: ASYNC110 - a state of a socket
                await asyncio.sleep(0.001)
        assert await ask(channel, node) == 2


async def test_changed_stores_count_from_the_next_connection_on(certificates: Certificates, tmp_path: Path) -> None:
    trusted = tmp_path / "trusted.crt"
    shutil.copy(certificates.directory / "stranger.crt", trusted)
    security = controller_security(BrokerConfig(texts_of("SSL", certificates, ssl__truststore__location=str(trusted))))
    async with Node("SSL", node_texts(certificates)) as node:
        with pytest.raises(ChannelError):
            await ask(node.channel(security), node)
        shutil.copy(certificates.authority.certificate, tmp_path / "new")
        (tmp_path / "new").replace(trusted)
        assert await ask(node.channel(security), node) == node.connections
        trusted.write_text("no certificate")
        assert await ask(node.channel(security), node) == node.connections, "the stores of before serve on"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"inter__broker__listener__name": "OTHER"}, "'OTHER' for configuration inter.broker.listener.name"),
        ({"security__inter__broker__protocol": "SSL"}, "one of inter.broker.listener.name and security.inter"),
        ({"sasl__mechanism__inter__broker__protocol": "GSSAPI"}, "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"),
        ({"listener__name__brokers__scram-sha-512__sasl__jaas__config": PLAIN_USERS.format("")}, "ScramLoginModule"),
        (
            {"listener__name__brokers__scram-sha-512__sasl__jaas__config": SCRAM.replace(' password="s3a"', "")},
            'password="PASSWORD"',
        ),
    ],
)
def test_an_impossible_login_configuration_is_refused_at_the_start(
    texts: dict[str, str], message: str, certificates: Certificates
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        broker_security(BrokerConfig(texts_of("SASL_PLAINTEXT", certificates, **texts)))
    assert "s3a" not in str(refused.value)


@pytest.mark.parametrize("texts", [
    {"listener.security.protocol.map": "BROKERS:PLAINTEXT,CONTROLER:SASL_SSL"},
    {"listeners": "SSL://localhost:9092", "inter.broker.listener.name": "SSL"},
])  # fmt: skip
def test_controllers_without_a_protocol_are_not_spoken_to_in_clear(texts: dict[str, str]) -> None:
    """A mistyped name in the map must not turn TLS off. Kafka asks for the name by the same rule."""
    with pytest.raises(ConfigError, match=r"controller\.listener\.names"):
        controller_security(BrokerConfig(BASIC | texts))


def test_controllers_of_a_plain_cluster_need_no_protocol() -> None:
    texts = {"listeners": "PLAINTEXT://localhost:9092", "inter.broker.listener.name": "PLAINTEXT"}
    assert controller_security(BrokerConfig(BASIC | texts)).credentials is None


async def test_a_connection_whose_login_was_refused_is_not_used_again(certificates: Certificates) -> None:
    security = controller_security(BrokerConfig(texts_of("SASL_PLAINTEXT", certificates)))
    async with Node("SASL_PLAINTEXT", node_texts(certificates, sasl__enabled__mechanisms="SCRAM-SHA-512")) as node:
        channel = node.channel(security)
        for number in (1, 2):
            with pytest.raises(ChannelError, match="does not accept PLAIN"):
                await channel.ask(node.address, REQUEST, AllocateProducerIdsResponse)
            assert node.connections == number


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "\0"])
async def test_a_text_that_names_no_host_is_a_node_that_cannot_be_reached(host: str) -> None:
    """Another broker may advertise such a text. Its error was once not converted to one of a channel, and ended this
    broker."""
    channel = Channel(30.0, PeerSecurity("BROKERS"))
    with pytest.raises(ChannelError, match=r"is not a host name|not known"):
        await channel.ask(Address(host, 9092), REQUEST, AllocateProducerIdsResponse)


async def test_a_node_cannot_be_reached_without_a_thread(certificates: Certificates) -> None:
    """TLS stores are read and host names looked up in a thread: the lack of one once ended the broker."""
    security = controller_security(BrokerConfig(texts_of("SSL", certificates)))
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    asyncio.get_running_loop().set_default_executor(executor)
    with pytest.raises(ChannelError, match="cannot schedule new futures"):
        await Channel(30.0, security).ask(Address("127.0.0.1", 9), REQUEST, AllocateProducerIdsResponse)


class Leader(Node):
    """A node whose answers to Fetch and ListOffsets take 20,000 bytes."""

    def _answer(self, exchange: SaslAuthenticator | None, frame: memoryview) -> bytes:
        header, _ = decode_request_header(frame)
        if header.api_key == ApiKey.FETCH:
            data = PartitionData(partition_index=0, high_watermark=1, records=bytes(20_000))
            return encode(header, FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])]))
        if header.api_key == ApiKey.LIST_OFFSETS:
            return encode(header, ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t" * 20_000)]))
        served = [
            ApiVersion(api_key=ApiKey.FETCH, min_version=4, max_version=12),
            ApiVersion(api_key=ApiKey.LIST_OFFSETS, min_version=1, max_version=7),
        ]
        return encode(header, ApiVersionsResponse(api_keys=served))


async def test_only_an_answer_with_records_may_have_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """``replica.fetch.response.max.bytes`` and ``max.message.bytes`` have no upper bound; such an answer ended the
    replication of its partitions.
    """
    monkeypatch.setattr(channel_module, "MAX_RESPONSE_BYTES", 10_000)
    async with Leader("PLAINTEXT", {}) as node:
        channel = node.channel(PeerSecurity("BROKERS"))
        fetched = await channel.ask(node.address, FetchRequest(), FetchResponse)
        assert len(fetched.responses[0].partitions[0].records or b"") == 20_000
        with pytest.raises(ChannelError, match="this is not a Kafka node"):
            await channel.ask(node.address, ListOffsetsRequest(), ListOffsetsResponse)


async def test_settings_of_tls_in_the_metadata_that_cannot_be_used_leave_the_former_ones(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache Kafka's controllers do not check them: their error once ended this broker."""
    async with Node("SSL", node_texts(certificates)) as node:
        config = BrokerConfig(texts_of("SSL", certificates))
        security = controller_security(config)
        config.set_dynamic({"listener.name.controller.ssl.keystore.type": "FOO"})
        assert await ask(node.channel(security), node) == node.connections == 1
        assert "keep their settings of TLS" in caplog.text
