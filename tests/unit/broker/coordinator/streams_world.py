"""A broker with real logs, and members of streams groups that talk to its handlers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.unit.broker.data_broker import DataBroker
from tests.unit.broker.handlers.drive import handler_of
from tests.unit.broker.stepping import response_of
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.group.streams.group import StreamsGroup
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.streams_group_heartbeat import (
    CopartitionGroup,
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TaskIdsResponse,
    TopicInfo,
    Topology,
)
from tidelog.protocol.schema.fields import Message


def word_count(epoch: int = 0) -> Topology:
    """Build a topology: it reads lines, sends words through a repartition topic, and keeps counts in a state with a
    changelog."""
    compacted = [KeyValue(key="cleanup.policy", value="compact")]
    return Topology(
        epoch=epoch,
        subtopologies=[
            Subtopology(subtopology_id="0", source_topics=["lines"], repartition_sink_topics=["words"]),
            Subtopology(
                subtopology_id="1",
                repartition_source_topics=[TopicInfo(name="words")],
                state_changelog_topics=[TopicInfo(name="counts-changelog", topic_configs=compacted)],
                copartition_groups=[CopartitionGroup(repartition_source_topics=[0])],
            ),
        ],
    )


class StreamsWorld(DataBroker):
    """The parts of a broker with streams groups. ``restarted`` starts new parts on its directory, as after a kill."""

    def __init__(self, directory: Path, texts: Mapping[str, str] | None = None) -> None:
        self.texts = {"offsets.topic.num.partitions": "1", **(texts or {})}
        super().__init__(directory, self.texts)
        self.directory = directory
        self.make_internal_topics("__consumer_offsets")

    def restarted(self) -> StreamsWorld:
        self.broker.controller.close()
        world = StreamsWorld(self.directory, self.texts)
        coordinators_of(world.broker).start()
        for _ in range(200):
            world.loop.run_soon()
        return world

    def advance(self, milliseconds: float) -> None:
        """Advance the time, and a little more: timers never fire early."""
        self.loop.advance(milliseconds + 5)
        for _ in range(20):
            self.loop.run_soon()

    def configure(self, **texts: str) -> None:
        """Set configs of the group ``g``."""
        pairs = {key.replace("_", "."): text for key, text in texts.items()}
        self.broker.configs.replace(32, "g", pairs, validate_only=False)

    def ask(self, request: Message, version: int | None = None) -> Any:
        context = self.context(1)
        context.api_version = request.VERSIONS.highest if version is None else version
        module = handler_of(request)
        received = module.Request.decode(memoryview(request.encode(context.api_version)), context.api_version)
        try:
            return response_of(module.handle(self.broker, context, received))
        except KafkaError as error:
            return response_of(module.error_response(received, error))

    @property
    def group(self) -> StreamsGroup:
        group = coordinators_of(self.broker).groups.runtime.shard_for("g").groups["g"]
        assert isinstance(group, StreamsGroup)
        return group


class Member:
    """A thread of a process: it begins and gives up the tasks that its responses name."""

    def __init__(self, world: StreamsWorld, name: str, process: str | None = None, port: int | None = None) -> None:
        self.world, self.name, self.process, self.port = world, name, process or f"p-{name}", port
        self.epoch = 0
        self.tasks: tuple[list[TaskIdsResponse], list[TaskIdsResponse]] = ([], [])

    def join(self, topology: Topology | None = None, **fields: Any) -> StreamsGroupHeartbeatResponse:
        endpoint = None if self.port is None else Endpoint(host="localhost", port=self.port)
        values: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "process_id": self.process, "user_endpoint": endpoint}
        values |= {"active_tasks": [], "standby_tasks": [], "warmup_tasks": [], **fields}
        return self.beat(0, topology=word_count() if topology is None else topology, **values)

    def beat(self, epoch: int | None = None, **fields: Any) -> StreamsGroupHeartbeatResponse:
        asked = self.epoch if epoch is None else epoch
        answer = self.world.ask(
            StreamsGroupHeartbeatRequest(group_id="g", member_id=self.name, member_epoch=asked, **fields)
        )
        assert isinstance(answer, StreamsGroupHeartbeatResponse)
        for _ in range(20):
            self.world.loop.run_soon()
        if answer.error_code == 0:
            self.epoch = answer.member_epoch
            if answer.active_tasks is not None and answer.standby_tasks is not None:
                self.tasks = (answer.active_tasks, answer.standby_tasks)
        return answer

    def confirm_tasks(self) -> StreamsGroupHeartbeatResponse:
        """Send a heartbeat that names the tasks of the last response as owned."""
        active, standby = (
            [TaskIds(subtopology_id=t.subtopology_id, partitions=t.partitions) for t in role] for role in self.tasks
        )
        return self.beat(active_tasks=active, standby_tasks=standby, warmup_tasks=[])

    def assigned_tasks(self) -> tuple[set[str], set[str]]:
        """Return active and standby tasks, as ``subtopology_partition``."""
        active, standby = (
            {f"{tasks.subtopology_id}_{index}" for tasks in role for index in tasks.partitions} for role in self.tasks
        )
        return active, standby
