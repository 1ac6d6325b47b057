"""The image as plain values: they can be written as JSON, have a fixed order and contain no secrets."""

from __future__ import annotations

import json

from tidelog.broker.config.resources import is_shown
from tidelog.broker.metadata.image_description import REDACTED, describe_image
from tidelog.broker.metadata.metadata_image import (
    EMPTY_IMAGE,
    AccessRule,
    BrokerRegistration,
    ControllerRegistration,
    Endpoint,
    MetadataImage,
    PartitionState,
    ScramState,
    TokenState,
    TopicState,
)

ID = bytes(range(16))
SECRET = b"never-print-this"


def image() -> MetadataImage:
    endpoint = Endpoint("PLAINTEXT", "localhost", 9092, 0)
    partition = PartitionState((2, 1), (1,), leader=1, leader_epoch=4, partition_epoch=9, directories=(ID, bytes(16)))
    return EMPTY_IMAGE._replace(
        offset=17,
        epoch=2,
        timestamp_ms=5,
        features={"metadata.version": 30, "group.version": 1},
        brokers={
            2: BrokerRegistration(2, 8, ID, (endpoint,), {"group.version": (0, 1)}, "r", True, False, (ID,), (ID,)),
            1: BrokerRegistration(1, 7, ID, (endpoint,), {}, None, False, True, ()),
        },
        controllers={1: ControllerRegistration(1, ID, (Endpoint("C", "::1", 9093, 3),), {})},
        topics={ID: TopicState("orders", ID, (partition,))},
        topic_ids={"orders": ID},
        configs={
            (4, "1"): {
                "listener.name.x.ssl.keystore.password": SECRET.decode(),
                "log.cleaner.threads": "2",
                "of.a.plugin": SECRET.decode(),
            },
            (2, "orders"): {"retention.ms": "5"},
        },
        quotas={
            (("user", "alice"),): {"producer_byte_rate": 1000.0},
            (("client-id", "x"), ("user", None)): {"request_percentage": 50.0},
        },
        scram={("alice", 2): ScramState(SECRET, SECRET, SECRET, 4096)},
        acls={ID: AccessRule(2, "orders", 3, "User:alice", "*", 3, 3)},
        tokens={"t1": TokenState("t1", "User:alice", "User:alice", (), 1, 2, 3)},
        producer_ids=2000,
    )


def test_the_description_is_json_with_names() -> None:
    found = json.loads(json.dumps(describe_image(image(), is_shown)))
    assert (found["offset"], found["epoch"], found["nextProducerId"]) == (17, 2, 2000)
    assert [broker["id"] for broker in found["brokers"]] == [1, 2]
    assert found["brokers"][1]["directories"] == ["AAECAwQFBgcICQoLDA0ODw"]
    assert found["controllers"][0]["endpoints"][0]["securityProtocol"] == "SASL_SSL"
    assert found["topics"][0]["partitions"][0]["isr"] == [1]
    assert found["quotas"][0]["entity"] == {"client-id": "x", "user": None}
    assert found["users"] == [{"name": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 4096}]
    assert list(found["acls"][0].values()) == ["TOPIC", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW"]
    assert found["tokens"] == ["t1"]


def test_no_secret_is_printed() -> None:
    text = json.dumps(describe_image(image(), is_shown))
    assert REDACTED in text
    assert SECRET.decode() not in text
    assert SECRET.hex() not in text
    assert {"log.cleaner.threads": "2"}.items() <= describe_image(image(), is_shown)["configs"][1]["values"].items()


def test_the_order_is_that_of_names_and_ids() -> None:
    turned = image()._replace(
        brokers=dict(reversed(list(image().brokers.items()))),
        configs=dict(reversed(list(image().configs.items()))),
        quotas=dict(reversed(list(image().quotas.items()))),
    )
    assert json.dumps(describe_image(turned, is_shown)) == json.dumps(describe_image(image(), is_shown))


def test_numbers_of_a_newer_kafka_are_shown_as_they_are() -> None:
    newer = image()._replace(
        acls={ID: AccessRule(99, "x", 98, "User:a", "*", 97, 96)},
        configs={(77, "x"): {"a": "b"}},
        scram={("alice", 9): ScramState(b"", b"", b"", 1)},
        controllers={1: ControllerRegistration(1, ID, (Endpoint("C", "::1", 9093, 44),), {})},
    )
    found = describe_image(newer, is_shown)
    assert [found["acls"][0]["resourceType"], found["acls"][0]["permission"]] == ["99", "96"]
    assert (found["configs"][0]["type"], found["users"][0]["mechanism"]) == ("77", "9")
    assert found["controllers"][0]["endpoints"][0]["securityProtocol"] == "44"
    assert found["configs"][0]["values"] == {"a": REDACTED}
