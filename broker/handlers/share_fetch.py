"""ShareFetch v1-2: acknowledge acquired records, and acquire more, or wait until there are some (KIP-932).

v2 acquire mode (KIP-1206) and renewal of locks (KIP-1222): a request that renews fetches nothing, so that its answer
comes before the renewed locks expire.

Acknowledgements are handled first: they may free room for the fetched records. Then the partitions are read
(``tidelog.broker.share.reading``). The response has the results of the acknowledgements. It has the partitions with
records or errors, and those that are new in the session or had an error in the last response.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.share_state.state import StateKey
from tidelog.broker.loop.deferred import Deferred, error_of
from tidelog.broker.loop.steps import Steps
from tidelog.broker.replica.opening import opening_of
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.share.acknowledging import Acknowledger, Outcomes, acknowledge_all, check_member
from tidelog.broker.share.config import check_enabled
from tidelog.broker.share.reading import (
    RECORD_LIMIT,
    ReadParams,
    Results,
    ShareRead,
    build_error_data,
    release_results,
)
from tidelog.broker.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, PartitionKey, SessionKey, ShareSession
from tidelog.broker.share.share_groups import ShareGroups
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    InvalidRequestError,
    KafkaError,
    ShareSessionLimitReachedError,
    TopicAuthorizationFailedError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages.share_fetch import (
    FetchTopic,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)

API_KEY = ApiKey.SHARE_FETCH
MIN_VERSION, MAX_VERSION = 1, 2
Request = ShareFetchRequest
Response = ShareFetchResponse | Deferred[ShareFetchResponse]


def handle(broker: Broker, context: RequestContext, request: ShareFetchRequest) -> Steps[Response]:
    """Acknowledge; once the acknowledgements are committed, fetch, and wait if there are too few records.

    Raises UnsupportedVersionError, InvalidRequestError, ShareSessionNotFoundError, InvalidShareSessionEpochError.
    """
    check_enabled(broker)
    group_id, member_id = check_member(request.group_id, request.member_id)
    check_renewal(request)
    groups = coordinators_of(broker).share_groups
    key = SessionKey(group_id, member_id)
    while (release := groups.when_released(key)) is not None:
        yield release
    try:
        session = find_session(groups, context, request, key)
    except ShareSessionLimitReachedError as error:
        return refuse_later(broker, error, request.max_wait_ms)
    who = Acknowledger(group_id, member_id, context.api_version, request.is_renew_ack)
    outcomes: Outcomes = {}
    if has_acknowledgements(request):
        allowed, outcomes = split_topics(broker, context, request)
        outcomes.update((yield from acknowledge_all(groups, broker.metadata, who, allowed)))
    answer = _Answer(groups, key, outcomes, session)
    released = groups.release_session(key) if request.share_session_epoch == FINAL_EPOCH else None
    yield from outcomes.values()
    if released is not None or request.is_renew_ack:
        yield released
        return (yield from answer.response({}))
    # Logs are opened and states loaded first, so that no records are locked while the request waits for them.
    yield from (yield from openings(broker, groups, key, session))
    return (yield from fetch(broker, context, request, answer))


def openings(
    broker: Broker, groups: ShareGroups, key: SessionKey, session: ShareSession
) -> Steps[list[Deferred[None]]]:
    """Begin to open the logs of the session's partitions, and to load the group's share states of these partitions,
    where that is needed."""
    found: list[Deferred[None] | None] = []
    for topic_id, index in list(session.partitions):
        found.append(opening_of(broker, "", index, topic_id))
        found.append(groups.when_open(StateKey(key.group_id, topic_id, index)))
        yield None
    return [opening for opening in found if opening is not None]


def error_response(request: ShareFetchRequest, error: KafkaError) -> ShareFetchResponse:
    """Build an answer that has only the error."""
    return ShareFetchResponse(error_code=error.code, error_message=error.message)


def check_renewal(request: ShareFetchRequest) -> None:
    """Raise InvalidRequestError for a request that renews locks and fetches."""
    if not request.is_renew_ack:
        return
    for name in ("max_bytes", "min_bytes", "max_records", "max_wait_ms"):
        if getattr(request, name):
            raise InvalidRequestError(f"{name} must be set to 0 if isRenewAck is true.")


def has_acknowledgements(request: ShareFetchRequest) -> bool:
    """Return whether the request acknowledges records of any partition."""
    return any(asked.acknowledgement_batches for topic in request.topics for asked in topic.partitions)


def find_session(
    groups: ShareGroups, context: RequestContext, request: ShareFetchRequest, key: SessionKey
) -> ShareSession:
    """Return the session that this request begins, continues or ends.

    Raises InvalidRequestError, ShareSessionNotFoundError, InvalidShareSessionEpochError, ShareSessionLimitReachedError.
    """
    asked = [(bytes(topic.topic_id), each.partition_index) for topic in request.topics for each in topic.partitions]
    if request.share_session_epoch == INITIAL_EPOCH:
        if has_acknowledgements(request):
            raise InvalidRequestError("a new share session has nothing to acknowledge")
        session = groups.sessions.open(key, asked, context)
        groups.bind(context)
        return session
    session = groups.sessions.find(key, request.share_session_epoch)
    if request.share_session_epoch != FINAL_EPOCH:
        forgotten = [
            (bytes(topic.topic_id), index) for topic in request.forgotten_topics_data for index in topic.partitions
        ]
        session.update(asked, forgotten)
    return session


def refuse_later(broker: Broker, error: KafkaError, max_wait_ms: int) -> Deferred[ShareFetchResponse]:
    """Refuse a new session because there are too many. The answer is delayed, so that the client does not try again at
    once."""
    deferred: Deferred[ShareFetchResponse] = Deferred()
    timer = broker.timers.schedule(max(0, max_wait_ms), lambda: deferred.fail(error))
    deferred.on_abandon(timer.cancel)
    return deferred


def fetch(
    broker: Broker, context: RequestContext, request: ShareFetchRequest, answer: _Answer
) -> Steps[ShareFetchResponse]:
    """Read the session's partitions, and wait if there are too few records."""
    wanted, errors = yield from find_known_partitions(broker, context, answer.session)
    max_bytes = min(request.max_bytes, broker.config.get_int("fetch.max.bytes"))
    params = ReadParams(
        *answer.key,
        max_bytes,
        min(request.min_bytes, max_bytes),
        request.max_records,
        request.batch_size,
        request.share_acquire_mode == RECORD_LIMIT,
        request.share_session_epoch,
    )
    max_wait_ms = 0 if errors and not wanted else request.max_wait_ms
    if broker.services.quotas.made is not None:
        context.withdraw = answer.withdraw
    results = yield from ShareRead(broker, answer.groups, wanted, params).run(max_wait_ms)
    try:
        yield from withhold(broker, context, answer, results)
        results.update(errors)
        return (yield from answer.response(results))
    except GeneratorExit:
        release_results(results)
        raise


def split_topics(
    broker: Broker, context: RequestContext, request: ShareFetchRequest
) -> tuple[list[FetchTopic], Outcomes]:
    """Return the topics whose records the client may acknowledge, and errors for the partitions of the others."""
    authorizer = broker.authorizer
    if authorizer is None:
        return request.topics, {}
    allowed: list[FetchTopic] = []
    refused: Outcomes = {}
    for topic in request.topics:
        if not authorizer.refuses_topic_id(broker.metadata, context, topic.topic_id):
            allowed.append(topic)
            continue
        for asked in topic.partitions:
            outcome = refused[bytes(topic.topic_id), asked.partition_index] = Deferred()
            outcome.fail(TopicAuthorizationFailedError())
    return allowed, refused


def withhold(broker: Broker, context: RequestContext, answer: _Answer, results: Results) -> Steps[None]:
    """Release acquired records of topics that the client may not read: its rights may have changed while it waited."""
    authorizer = broker.authorizer
    if authorizer is None:
        return
    for partition, data in list(results.items()):
        if authorizer.refuses_topic_id(broker.metadata, context, partition[0]):
            answer.groups.take_back(answer.key, partition, data.acquired_records)
            release_results({partition: data})
            results[partition] = build_error_data(partition, TopicAuthorizationFailedError())
        yield None


def find_known_partitions(
    broker: Broker, context: RequestContext, session: ShareSession
) -> Steps[tuple[list[PartitionKey], Results]]:
    """Return the session's partitions that exist and may be read, and errors for the others."""
    wanted: list[PartitionKey] = []
    errors: Results = {}
    for partition in list(session.partitions):
        error = refusal_of(broker, context, partition)
        if error is None:
            wanted.append(partition)
        else:
            errors[partition] = build_error_data(partition, error)
        yield None
    return wanted, errors


def refusal_of(broker: Broker, context: RequestContext, partition: PartitionKey) -> KafkaError | None:
    """Return the error of a partition that does not exist or may not be read, else None."""
    authorizer = broker.authorizer
    image = broker.metadata.topic_by_id(partition[0])
    if image is None:
        return UnknownTopicIdError()
    if authorizer is not None and authorizer.refuses_topic_id(broker.metadata, context, partition[0]):
        return TopicAuthorizationFailedError()
    return None if 0 <= partition[1] < image.partition_count else UnknownTopicOrPartitionError()


class _Answer:
    """Builder of a response: fetched records, and results of acknowledgements."""

    __slots__ = ("_outcomes", "_results", "groups", "key", "session")

    def __init__(self, groups: ShareGroups, key: SessionKey, outcomes: Outcomes, session: ShareSession) -> None:
        self.groups = groups
        self._outcomes = outcomes
        self._results: Results = {}
        self.key = key
        self.session = session

    def response(self, results: Results) -> Steps[ShareFetchResponse]:
        """Build the response: fetched records, and results of acknowledgements."""
        self._results = results
        response = self._begin()
        topics: dict[bytes, ShareFetchableTopicResponse] = {}
        for partition, data in results.items():
            if self._is_news(partition, data) or partition in self._outcomes:
                self._add(response, topics, partition, data)
            yield None
        for partition in self._outcomes:
            if partition not in results:
                self._add(response, topics, partition, build_empty_data(partition))
            yield None
        return response

    def withdraw(self) -> ShareFetchResponse:
        """Make the acquired records available again, and build a response without them, which is sent in place of the
        one that ``response`` built."""
        partitions = self.session.partitions
        for partition, data in self._results.items():
            self.groups.take_back(self.key, partition, data.acquired_records)
            if partition in partitions:
                partitions[partition] = True
        response = self._begin()
        topics: dict[bytes, ShareFetchableTopicResponse] = {}
        for partition in self._outcomes:
            self._add(response, topics, partition, build_empty_data(partition))
        return response

    def _begin(self) -> ShareFetchResponse:
        lock_ms = self.groups.config(self.key.group_id).limits.lock_duration_ms
        return ShareFetchResponse(acquisition_lock_timeout_ms=lock_ms)

    def _add(
        self,
        response: ShareFetchResponse,
        topics: dict[bytes, ShareFetchableTopicResponse],
        partition: PartitionKey,
        data: PartitionData,
    ) -> None:
        """Add a partition to the response, with the result of its acknowledgements. ``topics`` has the response's
        topics by id."""
        outcome = self._outcomes.get(partition)
        error = None if outcome is None else error_of(outcome)
        if error is not None:
            data.acknowledge_error_code, data.acknowledge_error_message = error.code, error.message
        topic = topics.get(partition[0])
        if topic is None:
            topic = topics[partition[0]] = ShareFetchableTopicResponse(topic_id=partition[0])
            response.responses.append(topic)
        topic.partitions.append(data)

    def _is_news(self, partition: PartitionKey, data: PartitionData) -> bool:
        """Return whether the response has this result: records, an error, or a partition that is due to be reported. A
        partition with an error is due again in the next response, so that the client learns when the error is over."""
        partitions = self.session.partitions
        is_due = bool(partitions.get(partition))
        if partition in partitions:
            partitions[partition] = bool(data.error_code)
        return bool(data.records) or bool(data.error_code) or is_due


def build_empty_data(partition: PartitionKey) -> PartitionData:
    """Build the response of a partition without records."""
    return PartitionData(partition_index=partition[1], records=b"")
