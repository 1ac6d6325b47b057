"""Check of a cluster's metadata before a member joins the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from tidelog.broker.cluster.lifecycle import BrokerLifecycle, BrokerState, LifecycleError, Registration
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.broker.errors import StartError
from tidelog.broker.member.member import Member, check_image
from tidelog.broker.metadata.metadata_image import AccessRule, MetadataImage
from tidelog.log.system.time import ManualTime

IMAGE = MetadataImage(
    features={"metadata.version": 25}, acls={b"i" * 16: AccessRule(2, "orders", 3, "User:ann", "*", 3, 3)}
)

TEXTS = {
    "process.roles": "broker",
    "node.id": "7",
    "controller.quorum.bootstrap.servers": "localhost:1",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://localhost:9092",
}


def test_a_cluster_with_acls_is_joined_with_an_authorizer_only() -> None:
    check_image(IMAGE, BrokerConfig({"authorizer.class.name": STANDARD_AUTHORIZER}))
    with pytest.raises(StartError, match="cannot join: the metadata have 1 ACLs"):
        check_image(IMAGE, BrokerConfig({}))


@pytest.mark.parametrize(("level", "is_refused"), [(24, True), (25, False)])
def test_a_cluster_of_an_older_release_is_not_joined(level: int, is_refused: bool) -> None:
    image = MetadataImage(features={"metadata.version": level})
    told = pytest.raises(StartError, match=rf"metadata.version is at level {level}, and a member needs 25 and up")
    with told if is_refused else contextlib.nullcontext():
        check_image(image, BrokerConfig({}))


async def test_only_the_first_reason_to_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Tasks that fail as the broker ends do not replace the reason."""
    reasons: list[str] = []
    member = Member(BrokerConfig(TEXTS), ManualTime(), asyncio.get_running_loop(), reasons.append)

    async def fail(reason: str) -> None:
        raise LifecycleError(reason)

    with caplog.at_level(logging.ERROR):
        for reason in ("fenced", "no longer there"):
            member._start(fail(reason))
        await asyncio.gather(*member._tasks)
    assert reasons == ["fenced"]
    await member.close()


async def test_an_abandoned_start_ends_although_the_broker_was_unfenced_meanwhile() -> None:
    """It asks to be shut down, and its stop does not wait for the controllers."""
    member = Member(BrokerConfig(TEXTS), ManualTime(), asyncio.get_running_loop(), lambda _: None)
    registration = Registration(7, "cluster", b"i" * 16, (), {}, None, (), -1)
    life = member._lifecycle = BrokerLifecycle(registration, 2000)
    life.state = BrokerState.RUNNING
    member.abandon()
    with pytest.raises(StartError, match="asked to stop"):
        await member.serve()
    assert life.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
    await member.leave()
    await member.close()
