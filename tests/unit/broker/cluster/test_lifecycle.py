"""The lifecycle of a member: a table of transitions, and seeded schedules against a model of the controller."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from copy import deepcopy

import pytest

from tests.support.model_controller import CLUSTER_ID, SESSION_MS, ModelController
from tidelog.broker.cluster.lifecycle import (
    CATCH_UP_INTERVAL_MS,
    FIRST_BACKOFF_MS,
    REGISTRATION_RETRY_MS,
    SHUTDOWN_INTERVAL_MS,
    BrokerLifecycle,
    BrokerState,
    LifecycleError,
    Registration,
)
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE, BrokerRegistration, Endpoint, MetadataImage
from tidelog.protocol import errors
from tidelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from tidelog.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse

SEEDS = int(os.environ.get("TIDELOG_LIFECYCLE_SEEDS", "200"))
INTERVAL_MS = 2000.0
MAX_ANSWERS = 30
"""A session's end is waited for by registering each second; then catching up, getting ready and a heartbeat."""
EPOCH = 42
NODE = 7
OWN = Registration(
    broker_id=NODE,
    cluster_id=CLUSTER_ID,
    incarnation_id=b"i" * 16,
    endpoints=(Endpoint("PLAINTEXT", "host", 9092, 0),),
    features={"metadata.version": (25, 30)},
    rack="r",
    directories=(b"d" * 16, b"c" * 16),
    previous_epoch=5,
)
Act = Callable[[BrokerLifecycle], None]


def is_in(lifecycle: BrokerLifecycle, state: BrokerState) -> bool:
    """Return whether a broker is in a state."""
    return lifecycle.state is state


def image(offset: int = EPOCH, epoch: int = EPOCH, incarnation_id: bytes = OWN.incarnation_id) -> MetadataImage:
    """Build an image that holds a registration of this broker."""
    registration = BrokerRegistration(
        NODE, epoch, incarnation_id, OWN.endpoints, OWN.features, OWN.rack, True, False, OWN.directories
    )
    return MetadataImage(offset=offset, epoch=1, brokers={NODE: registration})


def ask(
    lifecycle: BrokerLifecycle, answer: BrokerRegistrationResponse | BrokerHeartbeatResponse, now_ms: float = 0
) -> None:
    """Let a broker ask its next question, and give it an answer."""
    lifecycle.next_question()
    lifecycle.take_answer(answer, now_ms)


def answer_registration(lifecycle: BrokerLifecycle) -> None:
    ask(lifecycle, BrokerRegistrationResponse(broker_epoch=EPOCH))


def answer_caught_up(lifecycle: BrokerLifecycle) -> None:
    lifecycle.take_image(image())
    lifecycle.take_answer(BrokerHeartbeatResponse(is_caught_up=True), 0)


def become_ready(lifecycle: BrokerLifecycle) -> None:
    lifecycle.become_ready(0)


def answer_unfenced(lifecycle: BrokerLifecycle) -> None:
    ask(lifecycle, BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False))


def begin_shutdown(lifecycle: BrokerLifecycle) -> None:
    lifecycle.begin_shutdown(0)


def answer_should_shut_down(lifecycle: BrokerLifecycle) -> None:
    ask(lifecycle, BrokerHeartbeatResponse(is_fenced=False, should_shut_down=True))


def answer_without_shut_down(lifecycle: BrokerLifecycle) -> None:
    ask(lifecycle, BrokerHeartbeatResponse(is_fenced=False))


RUNNING = (answer_registration, answer_caught_up, become_ready, answer_unfenced)


@pytest.mark.parametrize(
    ("acts", "state"),
    [
        ((), BrokerState.NOT_RUNNING),
        ((answer_registration,), BrokerState.STARTING),
        ((answer_registration, answer_caught_up), BrokerState.RECOVERY),
        ((answer_registration, answer_caught_up, answer_unfenced), BrokerState.RECOVERY),
        ((answer_registration, answer_caught_up, become_ready), BrokerState.RECOVERY),
        (RUNNING, BrokerState.RUNNING),
        ((*RUNNING, begin_shutdown), BrokerState.PENDING_CONTROLLED_SHUTDOWN),
        ((*RUNNING, begin_shutdown, answer_without_shut_down), BrokerState.PENDING_CONTROLLED_SHUTDOWN),
        ((*RUNNING, begin_shutdown, begin_shutdown, answer_should_shut_down), BrokerState.SHUTTING_DOWN),
        ((answer_registration, answer_caught_up, begin_shutdown), BrokerState.PENDING_CONTROLLED_SHUTDOWN),
        ((answer_registration, begin_shutdown), BrokerState.SHUTTING_DOWN),
        ((begin_shutdown,), BrokerState.SHUTTING_DOWN),
    ],
)
def test_states_follow_each_other(acts: tuple[Act, ...], state: BrokerState) -> None:
    lifecycle = BrokerLifecycle(OWN, INTERVAL_MS)
    for act in acts:
        act(lifecycle)
    assert lifecycle.state is state


@pytest.mark.parametrize(
    "seen",
    [
        EMPTY_IMAGE,
        image(epoch=EPOCH - 1),
        image(incarnation_id=b"o" * 16),
        MetadataImage(offset=EPOCH + 5, epoch=1),
    ],
    ids=["none", "an older registration", "another process", "unregistered"],
)
def test_roles_wait_for_this_process_own_registration(seen: MetadataImage) -> None:
    """A controller may say caught up; roles of a former life are not taken."""
    lifecycle = BrokerLifecycle(OWN, INTERVAL_MS)
    answer_registration(lifecycle)
    lifecycle.take_image(seen)
    lifecycle.take_answer(BrokerHeartbeatResponse(is_caught_up=True), 0)
    assert is_in(lifecycle, BrokerState.STARTING)
    answer_caught_up(lifecycle)
    assert is_in(lifecycle, BrokerState.RECOVERY)


def test_an_image_may_come_before_the_answer_that_names_the_epoch() -> None:
    lifecycle = BrokerLifecycle(OWN, INTERVAL_MS)
    lifecycle.take_image(image())
    answer_registration(lifecycle)
    lifecycle.take_answer(BrokerHeartbeatResponse(is_caught_up=True), 0)
    assert is_in(lifecycle, BrokerState.RECOVERY)


def test_a_registration_has_the_brokers_fields() -> None:
    request = BrokerLifecycle(OWN, INTERVAL_MS).next_question().request
    assert isinstance(request, BrokerRegistrationRequest)
    assert (request.broker_id, request.cluster_id, request.rack) == (NODE, CLUSTER_ID, "r")
    assert (request.incarnation_id, request.previous_broker_epoch) == (OWN.incarnation_id, 5)
    assert [(one.name, one.host, one.port, one.security_protocol) for one in request.listeners] == list(OWN.endpoints)
    assert [(one.name, one.min_supported_version, one.max_supported_version) for one in request.features] == [
        ("metadata.version", 25, 30)
    ]
    assert request.log_dirs == sorted(OWN.directories)


def heartbeat(*acts: Act) -> BrokerHeartbeatRequest:
    lifecycle = BrokerLifecycle(OWN, INTERVAL_MS)
    for act in acts:
        act(lifecycle)
    request = lifecycle.next_question().request
    assert isinstance(request, BrokerHeartbeatRequest)
    return request


def test_heartbeats_have_the_fields_of_the_brokers_state() -> None:
    first = heartbeat(answer_registration)
    assert (first.broker_epoch, first.current_metadata_offset, first.cordoned_log_dirs) == (EPOCH, -1, None)
    assert (first.want_fence, first.want_shut_down) == (True, False)
    recovering = heartbeat(answer_registration, answer_caught_up)
    assert (recovering.want_fence, recovering.cordoned_log_dirs) == (True, None)  # not known yet
    assert recovering.current_metadata_offset == EPOCH
    known = heartbeat(
        answer_registration, answer_caught_up, lambda one: one.note_cordoned(frozenset({b"d" * 16, b"c" * 16}), 0)
    )
    assert known.cordoned_log_dirs == [b"c" * 16, b"d" * 16]
    assert heartbeat(answer_registration, answer_caught_up, become_ready).want_fence is False
    leaving = heartbeat(*RUNNING, begin_shutdown)
    assert (leaving.want_fence, leaving.want_shut_down) == (False, True)


def test_a_cordoned_directory_is_sent_in_a_heartbeat_at_once() -> None:
    lifecycle = BrokerLifecycle(OWN, INTERVAL_MS)
    for act in (*RUNNING, lambda one: one.note_cordoned(frozenset(), 0)):
        act(lifecycle)
    lifecycle.next_question()
    lifecycle.take_answer(BrokerHeartbeatResponse(is_fenced=False), 100)
    assert lifecycle.next_question().not_before_ms == 100 + INTERVAL_MS
    lifecycle.note_cordoned(frozenset(), 200)
    assert lifecycle.next_question().not_before_ms == 100 + INTERVAL_MS
    lifecycle.note_cordoned(frozenset({b"d" * 16}), 300)
    assert lifecycle.next_question().not_before_ms == 300


@pytest.mark.parametrize(
    ("acts", "answer", "wait_ms"),
    [
        ((), BrokerRegistrationResponse(broker_epoch=EPOCH), 0),
        ((), BrokerRegistrationResponse(error_code=101), REGISTRATION_RETRY_MS),
        ((), BrokerRegistrationResponse(error_code=41), FIRST_BACKOFF_MS),
        ((answer_registration,), BrokerHeartbeatResponse(), CATCH_UP_INTERVAL_MS),
        ((answer_registration, answer_caught_up), BrokerHeartbeatResponse(is_caught_up=True), INTERVAL_MS),
        (RUNNING, BrokerHeartbeatResponse(is_fenced=False), INTERVAL_MS),
        (RUNNING, BrokerHeartbeatResponse(error_code=102), INTERVAL_MS),
        (RUNNING, BrokerHeartbeatResponse(error_code=41), FIRST_BACKOFF_MS),
        ((*RUNNING, begin_shutdown), BrokerHeartbeatResponse(), SHUTDOWN_INTERVAL_MS),
        ((*RUNNING, begin_shutdown, answer_without_shut_down), BrokerHeartbeatResponse(), INTERVAL_MS),
    ],
)
def test_the_delay_of_the_next_request_follows_from_the_answer(
    acts: tuple[Act, ...], answer: BrokerRegistrationResponse | BrokerHeartbeatResponse, wait_ms: float
) -> None:
    lifecycle = BrokerLifecycle(OWN, INTERVAL_MS)
    for act in acts:
        act(lifecycle)
    ask(lifecycle, answer, 100)
    assert lifecycle.next_question().not_before_ms == 100 + wait_ms
    assert bool(lifecycle.last_failure) == bool(answer.error_code)


@pytest.mark.parametrize("act", [become_ready, begin_shutdown])
def test_a_change_of_state_is_sent_in_a_heartbeat_at_once(act: Act) -> None:
    lifecycle = BrokerLifecycle(OWN, INTERVAL_MS)
    for one in (answer_registration, answer_caught_up):
        one(lifecycle)
    lifecycle.take_answer(BrokerHeartbeatResponse(is_caught_up=True), 100)
    act(lifecycle)
    assert lifecycle.next_question().not_before_ms <= 100


@pytest.mark.parametrize("act", [become_ready, begin_shutdown])
def test_a_change_of_state_during_a_heartbeat_is_sent_right_after_it(act: Act) -> None:
    """The answer to what was asked before must not put it off by an interval."""
    lifecycle = BrokerLifecycle(OWN, INTERVAL_MS)
    for one in (answer_registration, answer_caught_up):
        one(lifecycle)
    lifecycle.next_question()
    act(lifecycle)
    lifecycle.take_answer(BrokerHeartbeatResponse(is_caught_up=True), 100)
    question = lifecycle.next_question()
    assert question.not_before_ms == 100
    assert isinstance(question.request, BrokerHeartbeatRequest)
    assert (question.request.want_fence, question.request.want_shut_down) == (
        act is begin_shutdown,
        act is begin_shutdown,
    )
    lifecycle.take_answer(BrokerHeartbeatResponse(is_caught_up=True), 200)
    wait_ms = SHUTDOWN_INTERVAL_MS if act is begin_shutdown else INTERVAL_MS
    assert lifecycle.next_question().not_before_ms == 200 + wait_ms, "said once"


@pytest.mark.parametrize("act", [become_ready, begin_shutdown])
def test_a_change_waits_like_all_else_after_a_failure(act: Act) -> None:
    """A controller that answers nothing is not asked in a loop."""
    lifecycle = BrokerLifecycle(OWN, INTERVAL_MS)
    for one in (answer_registration, answer_caught_up):
        one(lifecycle)
    lifecycle.next_question()
    act(lifecycle)
    lifecycle.take_failure("no answer", 100)
    assert lifecycle.next_question().not_before_ms == 100 + FIRST_BACKOFF_MS


def test_waits_after_failures_double_up_to_the_interval() -> None:
    lifecycle = BrokerLifecycle(OWN, INTERVAL_MS)
    waits = []
    for _ in range(8):
        lifecycle.take_failure("no answer", 0)
        waits.append(lifecycle.next_question().not_before_ms)
    assert waits == [50, 100, 200, 400, 800, 1600, 2000, 2000]


@pytest.mark.parametrize("code", [31, 35, 42, 104, 119])
def test_a_registration_may_be_refused_for_good(code: int) -> None:
    lifecycle = BrokerLifecycle(OWN, INTERVAL_MS)
    with pytest.raises(LifecycleError, match=rf"\({code}\) to the registration"):
        lifecycle.take_answer(BrokerRegistrationResponse(error_code=code), 0)


def test_another_process_in_its_place_ends_a_broker() -> None:
    lifecycle = BrokerLifecycle(OWN, INTERVAL_MS)
    for act in RUNNING:
        act(lifecycle)
    with pytest.raises(LifecycleError, match="another process has registered as broker 7"):
        lifecycle.take_answer(BrokerHeartbeatResponse(error_code=errors.StaleBrokerEpochError.code), 0)


# ---- schedules


class Process:
    """One broker process: its lifecycle, and an image that is behind the controller's."""

    def __init__(self, number: int) -> None:
        self.lifecycle = BrokerLifecycle(OWN._replace(incarnation_id=bytes([number]) * 16), INTERVAL_MS)
        self.image = EMPTY_IMAGE
        self.is_replaced = False
        self.ready_at: int | None = None


class World:
    """Processes with one broker id, a model controller, a network that loses questions and answers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.controller = ModelController()
        self.now_ms = 0.0
        self.started = 0
        self.processes = [self.start()]
        self.is_calm = False

    def start(self) -> Process:
        """Start a process with a new incarnation id."""
        self.started += 1
        return Process(self.started)

    def step(self) -> None:
        """Take one process's next request; or let time pass, an image arrive, a stop begin, a second process start."""
        process = self.random.choice([one for one in self.processes if not one.is_replaced])
        lifecycle = process.lifecycle
        dice = 1.0 if self.is_calm else self.random.random()
        if dice < 0.02 and len(self.processes) < 3:
            self.processes.append(self.start())
        elif dice < 0.03:
            self.now_ms += self.random.uniform(0, 2 * SESSION_MS)
            self.controller.expire(self.now_ms)
        elif dice < 0.3 or self.is_calm:
            process.image = self.controller.image
            lifecycle.take_image(process.image)
        if is_in(lifecycle, BrokerState.RECOVERY) and lifecycle.wants_fence and self.random.random() < 0.5:
            lifecycle.become_ready(self.now_ms)
            process.ready_at = lifecycle.broker_epoch
        self.ask(process)
        self.check(process)

    def ask(self, process: Process) -> None:
        lifecycle = process.lifecycle
        question = lifecycle.next_question()
        self.now_ms = max(self.now_ms, question.not_before_ms)
        self.controller.expire(self.now_ms)
        fate = 1.0 if self.is_calm else self.random.random()
        if fate < 0.1:
            return lifecycle.take_failure("the question was lost", self.now_ms)
        request = question.request
        answer: BrokerRegistrationResponse | BrokerHeartbeatResponse
        if isinstance(request, BrokerRegistrationRequest):
            wired = BrokerRegistrationRequest.decode(request.encode(4), 4)
            answer = self.controller.register(wired, self.now_ms)
            refused = BrokerRegistrationResponse(error_code=errors.NotControllerError.code)
            answer = refused if 0.2 <= fate < 0.25 else answer
        else:
            answer = self.controller.beat(BrokerHeartbeatRequest.decode(request.encode(2), 2), self.now_ms)
        if fate < 0.2:
            return lifecycle.take_failure("the answer was lost", self.now_ms)
        try:
            lifecycle.take_answer(answer, self.now_ms)
        except LifecycleError:
            process.is_replaced = True
            self.processes = [one for one in self.processes if not one.is_replaced] or [self.start()]
        return None

    def check(self, process: Process) -> None:
        """Check the invariants that hold after each step."""
        lifecycle = process.lifecycle
        own = process.image.brokers.get(NODE)
        if lifecycle.state in (BrokerState.RECOVERY, BrokerState.RUNNING):
            assert process.image.offset >= lifecycle.broker_epoch
            assert own is not None
        if is_in(lifecycle, BrokerState.RUNNING):
            assert process.ready_at == lifecycle.broker_epoch
        current = self.controller.brokers.get(NODE)
        if current is not None and not current.is_fenced:
            unfenced_by = [one for one in self.processes if one.lifecycle.broker_epoch == current.broker_epoch]
            assert all(not one.lifecycle.wants_fence for one in unfenced_by), "unfenced before it was ready"


def answers_until_unfenced(world: World) -> int:
    """Return how many answers of a controller that answers each time it takes to unfence the newest process."""
    world.is_calm = True
    world.processes = world.processes[-1:]
    for count in range(3 * MAX_ANSWERS):
        (process,) = world.processes
        answer_registration = world.controller.brokers.get(NODE)
        is_current = (
            answer_registration is not None and answer_registration.broker_epoch == process.lifecycle.broker_epoch
        )
        if (
            is_current
            and answer_registration is not None
            and not answer_registration.is_fenced
            and not process.lifecycle.is_fenced
        ):
            return count
        world.step()
    return 3 * MAX_ANSWERS


@pytest.mark.parametrize("seed", range(0, SEEDS, 4))
def test_from_any_state_a_broker_is_unfenced_within_a_few_answers(seed: int) -> None:
    """Whatever was lost, expired or answered by a controller that is not active: nothing sticks."""
    world = World(seed)
    counts = []
    for number in range(60):
        world.step()
        if number % 3 == 0:
            counts.append(answers_until_unfenced(deepcopy(world)))
    assert max(counts) <= MAX_ANSWERS


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_schedule_ends_with_one_running_broker_and_a_clean_stop(seed: int) -> None:
    world = World(seed)
    for _ in range(60):
        world.step()
    world.is_calm = True
    world.processes = world.processes[-1:]
    process = world.processes[0]
    for _ in range(60):
        if is_in(process.lifecycle, BrokerState.RUNNING):
            break
        world.step()
        process = world.processes[0]
    assert is_in(process.lifecycle, BrokerState.RUNNING), process.lifecycle.last_failure
    assert world.controller.brokers[NODE].broker_epoch == process.lifecycle.broker_epoch
    for _ in range(60):  # it may have been fenced meanwhile, and is unfenced by its heartbeats
        if not world.controller.brokers[NODE].is_fenced:
            break
        world.step()
    leads = seed % 2 == 1  # only from a leader the controller takes something away first
    if leads:
        world.controller.create_topic("topic", b"t" * 16, [[NODE]], {})
    process.lifecycle.begin_shutdown(world.now_ms)
    for _ in range(5):
        if is_in(process.lifecycle, BrokerState.SHUTTING_DOWN):
            break
        world.step()
    assert is_in(process.lifecycle, BrokerState.SHUTTING_DOWN)
    assert world.controller.brokers[NODE].is_fenced
    assert world.controller.brokers[NODE].in_controlled_shutdown == leads


# -- log directories that fail (KIP-858) ----------------------------------------------------------------------------


def serving() -> BrokerLifecycle:
    lifecycle = BrokerLifecycle(OWN, INTERVAL_MS)
    for act in (answer_registration, answer_caught_up, become_ready, answer_unfenced):
        act(lifecycle)
    return lifecycle


def beat(lifecycle: BrokerLifecycle, now_ms: float, failing: bytes | None = None) -> tuple[list[bytes], float]:
    """Send a heartbeat that is answered while a directory fails. Returns the failed directories in it, and when the
    next one is due."""
    request = lifecycle.next_question().request
    assert isinstance(request, BrokerHeartbeatRequest)
    if failing is not None:
        lifecycle.note_offline(failing, now_ms)
    lifecycle.take_answer(BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False), now_ms)
    return request.offline_log_dirs, lifecycle.next_question().not_before_ms


def test_a_failed_directory_is_in_all_heartbeats_from_then_on() -> None:
    lifecycle = serving()
    assert lifecycle.next_question().not_before_ms == INTERVAL_MS
    lifecycle.note_offline(b"d" * 16, 100)
    assert lifecycle.next_question().not_before_ms == 100
    assert beat(lifecycle, 110) == ([b"d" * 16], 110 + INTERVAL_MS)
    lifecycle.note_offline(b"c" * 16, 200)
    lifecycle.note_offline(b"d" * 16, 200)
    assert beat(lifecycle, 210) == ([b"c" * 16, b"d" * 16], 210 + INTERVAL_MS)


def test_a_directory_that_fails_during_a_heartbeat_is_in_the_next_one_at_once() -> None:
    lifecycle = serving()
    reported, next_ms = beat(lifecycle, 100, failing=b"d" * 16)
    assert (reported, next_ms) == ([], 100)
    assert lifecycle.has_unconfirmed_failure(101), "that answer did not know of it"
    assert beat(lifecycle, 110) == ([b"d" * 16], 110 + INTERVAL_MS)
    assert not lifecycle.has_unconfirmed_failure(1e9)


def test_a_failure_that_no_controller_confirms_is_known_by_its_age() -> None:
    lifecycle = serving()
    lifecycle.note_offline(b"d" * 16, 100)
    lifecycle.next_question()
    lifecycle.take_failure("no answer", 30_000)
    lifecycle.take_answer(BrokerHeartbeatResponse(error_code=errors.NotControllerError.code), 30_000)
    assert not lifecycle.has_unconfirmed_failure(100)
    assert lifecycle.has_unconfirmed_failure(101)
