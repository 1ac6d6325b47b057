"""Replay of random metadata records against Kafka's ``MetadataDelta``: both lead to the same image."""

from __future__ import annotations

import base64
import random
import subprocess

import pytest

from tests.support.jvm import METADATA_REPLAY, java_program
from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.image_records import METADATA_VERSION, records_of_image
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE, TOPIC_RESOURCE, MetadataImage
from tidelog.protocol.metadata_records import records
from tidelog.protocol.metadata_records.frames import decode_metadata_record, encode_metadata_record
from tidelog.protocol.schema.fields import Message

SCENARIOS, IMAGES = 100, 30
WITH_ELR = 23
"""First level of metadata.version with eligible leader replicas."""
BROKERS = range(1, 5)
UNCHANGED, NO_LEADER = -2, -1


class Scenario:
    """Random records that fit the image before them, by image, and the image that they lead to."""

    def __init__(self, seed: int, level: int) -> None:
        self.random = random.Random(seed)
        self.image: MetadataImage = EMPTY_IMAGE
        self.groups: list[list[Message]] = []
        self._present = EMPTY_IMAGE
        """The image after all records so far; ``image`` is that after whole groups."""
        self._delta = MetadataDelta(EMPTY_IMAGE)
        self._group: list[Message] = []
        self._add(records.FeatureLevelRecord(name=METADATA_VERSION, feature_level=level))
        if level >= WITH_ELR:
            self._add(records.FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1))
        self._end_group()
        together = (
            self.topic, self.partition_change, self.partition_change, self.partition_change, self.broker,
            self.broker_change, self.config, self.quota, self.feature, self.acl, self.scram, self.token,
            self.broker_removal, self.controller,
        )  # fmt: skip
        # In one group with other records, Kafka's image may differ from its controller's state: it keeps the ELR of a
        # new topic, the first config of a deleted one, and may lose a user beside one that is removed (ScramDelta).
        alone = (self.cleared_elr, self.topic_removal, self.scram_removal)
        for _ in range(IMAGES):
            if self.random.random() < 0.2:
                self._add(self.random.choice(alone)())
            else:
                for _ in range(self.random.randint(1, 4)):
                    self._add(self.random.choice(together)())
            self._end_group()

    def _add(self, record: Message | None) -> None:
        """Replay a record, onto the image and into the group's delta."""
        if record is not None:
            alone = MetadataDelta(self._present)
            for delta in (alone, self._delta):
                delta.replay(record)
            self._present = alone.build(1, 1, 1000)
            self._group.append(record)

    def _end_group(self) -> None:
        if self._group:
            self.groups.append(self._group)
            self.image = self._delta.build(1, 1, 1000)
            self._delta, self._group = MetadataDelta(self.image), []

    # ---- values

    def some(self, most: int = 3) -> list[int]:
        """Return some brokers."""
        return self.random.sample(BROKERS, self.random.randint(1, most))

    def some_or_none(self) -> list[int] | None:
        """Return some brokers, no broker, or None for an unchanged list."""
        return self.random.choice((None, None, [], self.some(2)))

    def uuid(self) -> bytes:
        """Return a directory's id."""
        return bytes([100 + self.random.randrange(5)]) * 16

    def topic_id(self) -> bytes | None:
        """Return the id of a topic, None if there is none."""
        return self.random.choice(sorted(self._present.topics)) if self._present.topics else None

    def broker_id(self) -> int | None:
        """Return a registered broker, None if there is none."""
        return self.random.choice(sorted(self._present.brokers)) if self._present.brokers else None

    # ---- records

    def topic(self) -> Message | None:
        """Return a new topic, or a further partition of one."""
        topic_id = self.topic_id()
        if topic_id is None or (len(self._present.topics) < 4 and self.random.random() < 0.5):
            name = f"t{self.random.randrange(6)}"
            if name in self._present.topic_ids:
                return None
            return records.TopicRecord(name=name, topic_id=self.random.randbytes(16))
        replicas = self.some()
        return records.PartitionRecord(
            partition_id=len(self._present.topics[topic_id].partitions), topic_id=topic_id, replicas=replicas,
            isr=replicas[:1], removing_replicas=self.some_or_none() or [], adding_replicas=self.some_or_none() or [],
            leader=replicas[0], leader_recovery_state=self.random.randint(0, 1), leader_epoch=self.random.randrange(5),
            partition_epoch=self.random.randrange(5), directories=[self.uuid() for _ in replicas],
            eligible_leader_replicas=self.some_or_none(), last_known_elr=self.some_or_none(),
        )  # fmt: skip

    def partition_change(self) -> Message | None:
        """Return a change of a partition."""
        topic_id = self.topic_id()
        if topic_id is None or not (partitions := self._present.topics[topic_id].partitions):
            return None
        number = self.random.randrange(len(partitions))
        replicas = self.some() if self.random.random() < 0.3 else None
        count = len(replicas or partitions[number].replicas)
        directories = [self.uuid() for _ in range(count)] if replicas or self.random.random() < 0.3 else None
        return records.PartitionChangeRecord(
            partition_id=number, topic_id=topic_id, isr=self.random.choice((None, self.some(2))),
            leader=self.random.choice((UNCHANGED, NO_LEADER, *BROKERS)), replicas=replicas,
            removing_replicas=self.some_or_none(), adding_replicas=self.some_or_none(),
            leader_recovery_state=self.random.randint(-1, 1), directories=directories,
            eligible_leader_replicas=self.some_or_none(), last_known_elr=self.some_or_none(),
        )  # fmt: skip

    def cleared_elr(self) -> Message | None:
        """Return the removal of eligible leader replicas, of one topic or of all."""
        topic_id = self.topic_id()
        if topic_id is None:
            return None
        return records.ClearElrRecord(topic_name=self.random.choice(("", self._present.topics[topic_id].name)))

    def topic_removal(self) -> Message | None:
        """Return the deletion of a topic, seldom."""
        topic_id = self.topic_id() if self.random.random() < 0.3 else None
        return None if topic_id is None else records.RemoveTopicRecord(topic_id=topic_id)

    def broker(self) -> Message:
        """Return a broker's registration."""
        broker_id = self.random.choice(BROKERS)
        return records.RegisterBrokerRecord(
            broker_id=broker_id, incarnation_id=self.random.randbytes(16), broker_epoch=self.random.randrange(1000),
            end_points=[records.RegisteredEndpoint(name="PLAINTEXT", host=f"h{broker_id}", port=9092)],
            features=[records.RegisteredFeature(name="metadata.version", min_supported_version=7,
                                                max_supported_version=30)],
            rack=self.random.choice((None, "r")), fenced=self.random.random() < 0.5,
            in_controlled_shutdown=self.random.random() < 0.5, log_dirs=[self.uuid()],
            cordoned_log_dirs=self.random.choice((None, [], [self.uuid()])),
        )  # fmt: skip

    def broker_change(self) -> Message | None:
        """Return a change of a registration."""
        broker_id = self.broker_id()
        if broker_id is None:
            return None
        epoch = self._present.brokers[broker_id].broker_epoch
        kind = self.random.random()
        if kind < 0.2:
            return records.FenceBrokerRecord(id=broker_id, epoch=epoch)
        if kind < 0.4:
            return records.UnfenceBrokerRecord(id=broker_id, epoch=epoch)
        return records.BrokerRegistrationChangeRecord(
            broker_id=broker_id, broker_epoch=epoch, fenced=self.random.randint(-1, 1),
            in_controlled_shutdown=self.random.randint(0, 1), log_dirs=self.random.choice(([], [self.uuid()])),
            cordoned_log_dirs=self.random.choice((None, [], [self.uuid()])),
        )  # fmt: skip

    def broker_removal(self) -> Message | None:
        """Return the end of a registration, seldom."""
        broker_id = self.broker_id() if self.random.random() < 0.3 else None
        if broker_id is None:
            return None
        epoch = self._present.brokers[broker_id].broker_epoch
        return records.UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=epoch)

    def controller(self) -> Message:
        """Return a controller's registration."""
        return records.RegisterControllerRecord(
            controller_id=self.random.randint(10, 11), incarnation_id=self.random.randbytes(16),
            end_points=[records.RegisteredEndpoint(name="CONTROLLER", host="c", port=9093)],
        )  # fmt: skip

    def config(self) -> Message:
        """Return a config that is set or removed."""
        names = [(TOPIC_RESOURCE, name) for name in self._present.topic_ids]
        kind, name = self.random.choice([*names, (4, ""), (4, "1"), (16, "m"), (32, "g")])
        value = self.random.choice((None, "1", "2"))
        return records.ConfigRecord(resource_type=kind, resource_name=name, name=f"k{self.random.randrange(3)}",
                                    value=value)  # fmt: skip

    def quota(self) -> Message:
        """Return a quota that is set or removed."""
        kinds = self.random.choice((["user"], ["client-id"], ["client-id", "user"]))
        names = [self.random.choice((None, "a")) for _ in kinds]
        entity = [
            records.QuotaEntityData(entity_type=kind, entity_name=name) for kind, name in zip(kinds, names, strict=True)
        ]
        return records.ClientQuotaRecord(
            entity=entity, key=self.random.choice(("producer_byte_rate", "consumer_byte_rate")),
            value=float(self.random.randrange(3)), remove=self.random.random() < 0.4,
        )  # fmt: skip

    def feature(self) -> Message:
        """Return a feature's level, or a block of producer ids."""
        if self.random.random() < 0.5:
            following = self.random.randrange(1, 9) * 1000
            return records.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=following)
        return records.FeatureLevelRecord(name="group.version", feature_level=self.random.randint(0, 1))

    def acl(self) -> Message:
        """Return an ACL that is set or removed."""
        if self._present.acls and self.random.random() < 0.4:
            return records.RemoveAccessControlEntryRecord(id=self.random.choice(sorted(self._present.acls)))
        return records.AccessControlEntryRecord(
            id=self.random.randbytes(16), resource_type=2, resource_name="t", pattern_type=3, principal="User:a",
            host="*", operation=self.random.randint(2, 12), permission_type=self.random.randint(2, 3),
        )  # fmt: skip

    def scram(self) -> Message:
        """Return a user's credential."""
        return records.UserScramCredentialRecord(
            name=self.random.choice("ab"), mechanism=self.random.randint(1, 2), salt=b"s", stored_key=b"k",
            server_key=b"v", iterations=4096 + self.random.randrange(3),
        )  # fmt: skip

    def scram_removal(self) -> Message | None:
        """Return the removal of a credential."""
        if not self._present.scram:
            return None
        name, mechanism = self.random.choice(sorted(self._present.scram))
        return records.RemoveUserScramCredentialRecord(name=name, mechanism=mechanism)

    def token(self) -> Message:
        """Return a delegation token that is created, renewed or removed."""
        if self._present.tokens and self.random.random() < 0.4:
            return records.RemoveDelegationTokenRecord(token_id=self.random.choice(sorted(self._present.tokens)))
        return records.DelegationTokenRecord(
            owner="User:a", requester="User:a", renewers=self.random.choice(([], ["User:b"])), issue_timestamp=1,
            max_timestamp=9, expiration_timestamp=self.random.randrange(2, 9), token_id=self.random.choice("xyz"),
        )  # fmt: skip


def text_of(record: Message, version: int) -> str:
    """Return a record as Kafka's side reads it."""
    return base64.b64encode(encode_metadata_record(record, version)).decode()


def line_of(scenario: Scenario) -> str:
    """Return a scenario as Kafka's side reads it."""
    groups = (" ".join(text_of(one, one.VERSIONS.highest) for one in group) for group in scenario.groups)
    return " | ".join(groups)


def describe(text: str) -> tuple[str, str]:
    """Return a record as text, and its frame, which has the version too."""
    return repr(decode_metadata_record(base64.b64decode(text))), text


@pytest.mark.java
@pytest.mark.parametrize("level", [17, 23, 25, 30])
def test_random_records_lead_to_kafkas_image(level: int) -> None:
    """The records of both images are equal, in the versions of the level too."""
    scenarios = [Scenario(seed, level) for seed in range(SCENARIOS)]
    lines = "".join(f"{line_of(scenario)}\n" for scenario in scenarios)
    done = subprocess.run(java_program(METADATA_REPLAY), input=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for seed, (scenario, answer) in enumerate(zip(scenarios, done.stdout.splitlines(), strict=True)):
        own, kafkas = (text_of(*one) for one in records_of_image(scenario.image)), answer.split()
        assert sorted(map(describe, own)) == sorted(map(describe, kafkas)), f"seed {seed}"
