"""ShareFetch v1-2: acknowledge acquired records, and acquire more, or wait until there are some (KIP-932).

v2 acquire mode (KIP-1206) and renewal of locks (KIP-1222): a request that renews fetches nothing, so that its answer
comes before the locks expire again.

Acknowledgements are handled first: they may free room for the fetched records. Then the partitions are read
(``tidelog.broker.share.reading``). The response has the partitions with records or errors, the partitions that are new
in the session, and the results of the acknowledgements.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.share_state.state import StateKey
from tidelog.broker.loop.deferred import Deferred, error_of, when_all_done
from tidelog.broker.loop.steps import Steps
from tidelog.broker.replica.opening import opening_of
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.share.acknowledging import Acknowledger, Outcomes, acknowledge_all, check_member
from tidelog.broker.share.config import check_enabled
from tidelog.broker.share.reading import RECORD_LIMIT, ReadParams, Results, ShareRead, build_error_data
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
from tidelog.protocol.transferable import release_slices

API_KEY = ApiKey.SHARE_FETCH
MIN_VERSION, MAX_VERSION = 1, 2
Request = ShareFetchRequest
Response = ShareFetchResponse | Deferred[ShareFetchResponse]


def handle(broker: Broker, context: RequestContext, request: ShareFetchRequest) -> Response | Steps[Response]:
    """Acknowledge; once the acknowledgements are committed, fetch, and wait if there are too few records.

    Raises InvalidRequestError, ShareSessionNotFoundError, InvalidShareSessionEpochError.
    """
    check_enabled(broker)
    group_id, member_id = check_member(request.group_id, request.member_id)
    check_renewal(request)
    groups = coordinators_of(broker).share_groups
    key = SessionKey(group_id, member_id)
    try:
        session = find_session(groups, context, request, key)
    except ShareSessionLimitReachedError as error:
        return refuse_later(broker, error, request.max_wait_ms)
    who = Acknowledger(group_id, member_id, context.api_version, request.is_renew_ack)
    outcomes: Outcomes = {}
    if has_acknowledgements(request):
        allowed, outcomes = split_topics(broker, context, request)
        outcomes.update(acknowledge_all(groups, broker.metadata, who, allowed))
    answer = _Answer(groups, SessionKey(group_id, member_id), outcomes, session)
    if request.share_session_epoch == FINAL_EPOCH:
        return when_all_done((*outcomes.values(), groups.release_session(key)), lambda: answer.response({}))
    if request.is_renew_ack:
        return when_all_done(outcomes.values(), lambda: answer.response({}))
    waits = [outcome for outcome in outcomes.values() if not outcome.done] + openings(broker, groups, key, session)
    if not waits:
        return fetch(broker, context, request, answer)
    return fetch_after(waits, lambda: fetch(broker, context, request, answer))


def openings(broker: Broker, groups: ShareGroups, key: SessionKey, session: ShareSession) -> list[Deferred[None]]:
    """Begin to open the logs that are not open: those of the session's partitions, and those with the group's share
    states of these partitions."""
    found = [
        opening
        for topic_id, index in session.partitions
        for opening in (
            opening_of(broker, "", index, topic_id),
            groups.when_open(StateKey(key.group_id, topic_id, index)),
        )
    ]
    return [opening for opening in found if opening is not None]


def fetch_after(waits: list[Deferred[None]], read: Callable[[], Response]) -> Steps[Response]:
    """Read once the acknowledgements are committed and the logs are open: a request that waits for the disk acquires
    nothing."""
    yield from waits
    return read()


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
) -> ShareFetchResponse | Deferred[ShareFetchResponse]:
    """Read the session's partitions, and wait if there are too few records."""
    groups = answer.groups
    wanted, errors = find_known_partitions(broker, context, answer.session)
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
    read = ShareRead(broker, groups, wanted, params).begin(max_wait_ms)
    if isinstance(read, dict):
        return answer.response({**read, **errors})
    return read.map(lambda found: answer.response({**withhold(broker, context, answer, found), **errors}))


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


def withhold(broker: Broker, context: RequestContext, answer: _Answer, found: Results) -> Results:
    """Release acquired records of topics that the client may not read: its rights may have changed while it waited."""
    authorizer = broker.authorizer
    if authorizer is None:
        return found
    kept: Results = {}
    for partition, data in found.items():
        if authorizer.refuses_topic_id(broker.metadata, context, partition[0]):
            answer.groups.take_back(answer.key, partition, data.acquired_records)
            release_slices(data.records if isinstance(data.records, list) else [data.records])
            kept[partition] = build_error_data(partition, TopicAuthorizationFailedError())
        else:
            kept[partition] = data
    return kept


def find_known_partitions(
    broker: Broker, context: RequestContext, session: ShareSession
) -> tuple[list[PartitionKey], Results]:
    """Return the session's partitions that exist and may be read, and errors for the others."""
    authorizer = broker.authorizer
    wanted: list[PartitionKey] = []
    errors: Results = {}
    for partition in session.partitions:
        image = broker.metadata.topic_by_id(partition[0])
        if image is None:
            errors[partition] = build_error_data(partition, UnknownTopicIdError())
        elif authorizer is not None and authorizer.refuses_topic_id(broker.metadata, context, partition[0]):
            errors[partition] = build_error_data(partition, TopicAuthorizationFailedError())
        elif not 0 <= partition[1] < image.partition_count:
            errors[partition] = build_error_data(partition, UnknownTopicOrPartitionError())
        else:
            wanted.append(partition)
    return wanted, errors


class _Answer:
    """Builder of a response: fetched records, and results of acknowledgements."""

    __slots__ = ("_outcomes", "_results", "groups", "key", "session")

    def __init__(self, groups: ShareGroups, key: SessionKey, outcomes: Outcomes, session: ShareSession) -> None:
        self.groups = groups
        self._outcomes = outcomes
        self._results: Results = {}
        self.key = key
        self.session = session

    def response(self, results: Results) -> ShareFetchResponse:
        """Build the response: fetched records, and results of acknowledgements."""
        self._results = results
        news = self._select_news(results)
        for partition, outcome in self._outcomes.items():
            error = error_of(outcome)
            data = news.get(partition)
            if data is None:
                data = news[partition] = PartitionData(partition_index=partition[1], records=b"")
            if error is not None:
                data.acknowledge_error_code, data.acknowledge_error_message = error.code, error.message
        topics: dict[bytes, ShareFetchableTopicResponse] = {}
        for (topic_id, _), data in news.items():
            topic = topics.setdefault(topic_id, ShareFetchableTopicResponse(topic_id=topic_id))
            topic.partitions.append(data)
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=self.groups.config(self.key.group_id).limits.lock_duration_ms,
            responses=list(topics.values()),
        )

    def withdraw(self) -> ShareFetchResponse:
        """Make the acquired records available again, and build a response without them, which is sent in place of the
        last one."""
        results, partitions = self._results, self.session.partitions
        for partition, data in results.items():
            self.groups.take_back(self.key, partition, data.acquired_records)
            if partition in partitions:
                partitions[partition] = True
        return self.response({})

    def _select_news(self, results: Results) -> Results:
        """Select the results that the response has: records, errors, and partitions that are due to be reported. A
        partition with an error is due again in the next response, so that the client learns when the error is over."""
        news: Results = {}
        partitions = self.session.partitions
        for partition, data in results.items():
            if data.records or data.error_code or partitions.get(partition):
                news[partition] = data
            if partition in partitions:
                partitions[partition] = bool(data.error_code)
        return news
