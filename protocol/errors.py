"""Kafka's error table, one exception class per code, and the two mappings between them.

Handlers raise these exceptions; :mod:`tidelog.broker.requests.route` turns them into codes, one for each partition if
the response has partitions. A class is named as the code in Kafka's ``Errors`` enum, in camel case and ending in
``Error`` (INVALID_TOPIC_EXCEPTION is InvalidTopicError). Each declares its code, whether a client may try again, and
its default message (the docstring). A second class for a code is refused at import; a subclass without a code shares
its parent's.

Source: ``org.apache.kafka.common.protocol.Errors`` of Kafka 4.3; codes and retriable flags are checked against the
published jar by ``tests/contract/test_messages_kafka.py``.
"""

from __future__ import annotations

from typing import ClassVar

NONE = 0  # the code of success, which has no exception

_by_code: dict[int, type[KafkaError]] = {}


class KafkaError(Exception):
    """An error that is sent to a client. ``code`` and ``retriable`` belong to the class, the text to the instance."""

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False
    default_message: ClassVar[str] = "An error in the broker that has no error code of its own."

    def __init_subclass__(cls, *, code: int | None = None, retriable: bool = False) -> None:
        if code is None:
            return
        if code in _by_code:
            raise TypeError(f"error code {code} belongs to {_by_code[code].__name__}, not to {cls.__name__} too")
        cls.code = code
        cls.retriable = retriable
        cls.default_message = cls.__doc__ or ""
        _by_code[code] = cls

    def __init__(self, message: str | None = None) -> None:
        super().__init__(self.default_message if message is None else message)

    @property
    def message(self) -> str:
        """The text of the error: the one it was raised with, or the class's default."""
        return str(self)


class InvalidReceiveError(Exception):
    """A frame length that no peer may send. It has no code and no answer: the connection closes."""


def error_for_code(code: int) -> type[KafkaError]:
    """Return the class of ``code``, UnknownServerError for codes not in this table. Raises ValueError for 0: no
    error.
    """
    if code == NONE:
        raise ValueError("code 0 is success, there is no error for it")
    return _by_code.get(code, UnknownServerError)


def error_classes() -> list[type[KafkaError]]:
    """Return the classes of all codes, in the order of the codes."""
    return [error for _, error in sorted(_by_code.items())]


class UnknownServerError(KafkaError, code=-1):
    """The broker failed in a way it did not expect; its log has the details."""


class OffsetOutOfRangeError(KafkaError, code=1):
    """The offset is not within the range of the log."""


class CorruptMessageError(KafkaError, code=2, retriable=True):
    """The record batch fails its checksum, its size is wrong, or it lacks a key where the topic needs one."""


class UnknownTopicOrPartitionError(KafkaError, code=3, retriable=True):
    """This broker has no such topic or partition."""


class InvalidFetchSizeError(KafkaError, code=4):
    """The fetch size is not valid."""


class LeaderNotAvailableError(KafkaError, code=5, retriable=True):
    """The partition has no leader at the moment."""


class NotLeaderOrFollowerError(KafkaError, code=6, retriable=True):
    """This broker does not lead the partition, or holds no replica of it."""


class RequestTimedOutError(KafkaError, code=7, retriable=True):
    """The time allowed for the request is over."""


class BrokerNotAvailableError(KafkaError, code=8):
    """The broker is not available."""


class ReplicaNotAvailableError(KafkaError, code=9, retriable=True):
    """The replica is not available here."""


class MessageTooLargeError(KafkaError, code=10):
    """A record batch is larger than the topic accepts."""


class StaleControllerEpochError(KafkaError, code=11):
    """The controller's epoch is older than one seen before."""


class OffsetMetadataTooLargeError(KafkaError, code=12):
    """The metadata of the committed offset is too long."""


class NetworkError(KafkaError, code=13, retriable=True):
    """The connection ended before the answer came."""


class CoordinatorLoadInProgressError(KafkaError, code=14, retriable=True):
    """The coordinator is still loading its state."""


class CoordinatorNotAvailableError(KafkaError, code=15, retriable=True):
    """The coordinator is not available."""


class NotCoordinatorError(KafkaError, code=16, retriable=True):
    """This broker does not coordinate that group or transaction."""


class InvalidTopicError(KafkaError, code=17):
    """The topic name is not allowed, or the topic may not be used this way."""


class RecordListTooLargeError(KafkaError, code=18):
    """The records of one partition exceed its segment size."""


class NotEnoughReplicasError(KafkaError, code=19, retriable=True):
    """Too few replicas are in sync to accept the records."""


class NotEnoughReplicasAfterAppendError(KafkaError, code=20, retriable=True):
    """The records are stored, but on fewer in-sync replicas than required."""


class InvalidRequiredAcksError(KafkaError, code=21):
    """The number of acknowledgements must be -1, 0 or 1."""


class IllegalGenerationError(KafkaError, code=22):
    """The generation is not the group's current one."""


class InconsistentGroupProtocolError(KafkaError, code=23):
    """The member's protocols do not fit those of the group, or it named none."""


class InvalidGroupIdError(KafkaError, code=24):
    """The group id is not valid."""


class UnknownMemberIdError(KafkaError, code=25):
    """The coordinator does not know this member."""


class InvalidSessionTimeoutError(KafkaError, code=26):
    """The session timeout is outside the broker's group.min.session.timeout.ms and group.max.session.timeout.ms."""


class RebalanceInProgressError(KafkaError, code=27):
    """The group is rebalancing; the member must join again."""


class InvalidCommitOffsetSizeError(KafkaError, code=28):
    """The offset commit is larger than allowed."""


class TopicAuthorizationFailedError(KafkaError, code=29):
    """Not authorized for the topic."""


class GroupAuthorizationFailedError(KafkaError, code=30):
    """Not authorized for the group."""


class ClusterAuthorizationFailedError(KafkaError, code=31):
    """Not authorized for the cluster."""


class InvalidTimestampError(KafkaError, code=32):
    """The record's timestamp is outside the accepted range."""


class UnsupportedSaslMechanismError(KafkaError, code=33):
    """The SASL mechanism is not enabled on this listener."""


class IllegalSaslStateError(KafkaError, code=34):
    """The request does not fit the state of the SASL exchange."""


class UnsupportedVersionError(KafkaError, code=35):
    """This version of the API is not served."""


class TopicAlreadyExistsError(KafkaError, code=36):
    """A topic of this name exists."""


class InvalidPartitionsError(KafkaError, code=37):
    """The number of partitions is not valid."""


class InvalidReplicationFactorError(KafkaError, code=38):
    """The replication factor is below 1 or above the number of brokers."""


class InvalidReplicaAssignmentError(KafkaError, code=39):
    """The replica assignment is not valid."""


class InvalidConfigError(KafkaError, code=40):
    """The configuration is not valid."""


class NotControllerError(KafkaError, code=41, retriable=True):
    """This node is not the controller."""


class InvalidRequestError(KafkaError, code=42):
    """The request is malformed, or contradicts itself."""


class UnsupportedForMessageFormatError(KafkaError, code=43):
    """The topic's record format does not allow the request."""


class PolicyViolationError(KafkaError, code=44):
    """The request breaks a configured policy."""


class OutOfOrderSequenceNumberError(KafkaError, code=45):
    """The sequence number leaves a gap after the producer's last one."""


class DuplicateSequenceNumberError(KafkaError, code=46):
    """The sequence number was written before."""


class InvalidProducerEpochError(KafkaError, code=47):
    """The producer's epoch is older than the current one."""


class InvalidTxnStateError(KafkaError, code=48):
    """The transaction is in a state that does not allow this."""


class InvalidProducerIdMappingError(KafkaError, code=49):
    """The producer id is not the one assigned to the transactional id."""


class InvalidTransactionTimeoutError(KafkaError, code=50):
    """The transaction timeout exceeds the broker's transaction.max.timeout.ms."""


class ConcurrentTransactionsError(KafkaError, code=51, retriable=True):
    """Another operation on this transaction is still in progress."""


class TransactionCoordinatorFencedError(KafkaError, code=52):
    """The coordinator that sent the marker has been replaced by a newer one."""


class TransactionalIdAuthorizationFailedError(KafkaError, code=53):
    """Not authorized for the transactional id."""


class SecurityDisabledError(KafkaError, code=54):
    """Security features are disabled."""


class OperationNotAttemptedError(KafkaError, code=55):
    """The operation was not tried, because another one of the request failed."""


class KafkaStorageError(KafkaError, code=56, retriable=True):
    """The log could not be read or written on disk."""


class LogDirNotFoundError(KafkaError, code=57):
    """The log directory is not one of this broker's."""


class SaslAuthenticationFailedError(KafkaError, code=58):
    """Authentication failed."""


class UnknownProducerIdError(KafkaError, code=59):
    """The producer id is no longer known: its records may have been deleted."""


class ReassignmentInProgressError(KafkaError, code=60):
    """The partition is being reassigned."""


class DelegationTokenAuthDisabledError(KafkaError, code=61):
    """Delegation tokens are not enabled."""


class DelegationTokenNotFoundError(KafkaError, code=62):
    """The delegation token does not exist."""


class DelegationTokenOwnerMismatchError(KafkaError, code=63):
    """The principal neither owns nor may renew the token."""


class DelegationTokenRequestNotAllowedError(KafkaError, code=64):
    """Delegation tokens cannot be managed over a connection of this kind."""


class DelegationTokenAuthorizationFailedError(KafkaError, code=65):
    """Not authorized for the delegation token."""


class DelegationTokenExpiredError(KafkaError, code=66):
    """The delegation token has expired."""


class InvalidPrincipalTypeError(KafkaError, code=67):
    """The principal type is not supported."""


class NonEmptyGroupError(KafkaError, code=68):
    """The group still has members."""


class GroupIdNotFoundError(KafkaError, code=69):
    """The group does not exist."""


class FetchSessionIdNotFoundError(KafkaError, code=70, retriable=True):
    """The fetch session does not exist."""


class InvalidFetchSessionEpochError(KafkaError, code=71, retriable=True):
    """The fetch session's epoch is not the expected one."""


class ListenerNotFoundError(KafkaError, code=72, retriable=True):
    """The leader has no listener that matches the one this request came through."""


class TopicDeletionDisabledError(KafkaError, code=73):
    """Topics may not be deleted here."""


class FencedLeaderEpochError(KafkaError, code=74, retriable=True):
    """The leader epoch of the request is older than the partition's."""


class UnknownLeaderEpochError(KafkaError, code=75, retriable=True):
    """The leader epoch of the request is newer than the partition's."""


class UnsupportedCompressionTypeError(KafkaError, code=76):
    """The client's version cannot read the compression of the partition, or there is no such compression type."""


class StaleBrokerEpochError(KafkaError, code=77):
    """The broker epoch has changed."""


class OffsetNotAvailableError(KafkaError, code=78, retriable=True):
    """The new leader does not know its high watermark yet."""


class MemberIdRequiredError(KafkaError, code=79):
    """The member must join again with the member id it has now been given."""


class PreferredLeaderNotAvailableError(KafkaError, code=80, retriable=True):
    """The preferred leader is not available."""


class GroupMaxSizeReachedError(KafkaError, code=81):
    """The group has its maximum number of members."""


class FencedInstanceIdError(KafkaError, code=82):
    """Another member has taken over this group instance id."""


class EligibleLeadersNotAvailableError(KafkaError, code=83, retriable=True):
    """No eligible leader is available."""


class ElectionNotNeededError(KafkaError, code=84, retriable=True):
    """The partition needs no election."""


class NoReassignmentInProgressError(KafkaError, code=85):
    """The partition is not being reassigned."""


class GroupSubscribedToTopicError(KafkaError, code=86):
    """The group is subscribed to the topic, so its offsets stay."""


class InvalidRecordError(KafkaError, code=87):
    """A record failed validation."""


class UnstableOffsetCommitError(KafkaError, code=88, retriable=True):
    """Open transactions may still change these offsets."""


class ThrottlingQuotaExceededError(KafkaError, code=89, retriable=True):
    """The quota for operations of this kind is used up for now."""


class ProducerFencedError(KafkaError, code=90):
    """A newer producer with the same transactional id has taken over."""


class ResourceNotFoundError(KafkaError, code=91):
    """The request names something that does not exist."""


class DuplicateResourceError(KafkaError, code=92):
    """The request names the same thing twice."""


class UnacceptableCredentialError(KafkaError, code=93):
    """The credential does not meet the requirements."""


class InconsistentVoterSetError(KafkaError, code=94):
    """Sender or receiver is not among the expected voters."""


class InvalidUpdateVersionError(KafkaError, code=95):
    """The update does not follow the current version."""


class FeatureUpdateFailedError(KafkaError, code=96):
    """The feature could not be updated."""


class PrincipalDeserializationFailureError(KafkaError, code=97):
    """The forwarded principal could not be read."""


class SnapshotNotFoundError(KafkaError, code=98):
    """The snapshot does not exist."""


class PositionOutOfRangeError(KafkaError, code=99):
    """The position lies outside the snapshot."""


class UnknownTopicIdError(KafkaError, code=100, retriable=True):
    """This broker has no topic of this id."""


class DuplicateBrokerRegistrationError(KafkaError, code=101):
    """The broker id is in use."""


class BrokerIdNotRegisteredError(KafkaError, code=102):
    """The broker id is not registered."""


class InconsistentTopicIdError(KafkaError, code=103, retriable=True):
    """The topic id of the log is not that of the request."""


class InconsistentClusterIdError(KafkaError, code=104):
    """The request is meant for another cluster."""


class TransactionalIdNotFoundError(KafkaError, code=105):
    """The transactional id does not exist."""


class FetchSessionTopicIdError(KafkaError, code=106, retriable=True):
    """The fetch session mixes topic names and topic ids."""


class IneligibleReplicaError(KafkaError, code=107):
    """A replica of the new in-sync set may not be in it."""


class NewLeaderElectedError(KafkaError, code=108):
    """The partition's state was updated, but its leader has changed."""


class OffsetMovedToTieredStorageError(KafkaError, code=109):
    """The offset has moved to tiered storage."""


class FencedMemberEpochError(KafkaError, code=110):
    """The member's epoch is fenced; it must give up its partitions and join again."""


class UnreleasedInstanceIdError(KafkaError, code=111):
    """Another member still holds this group instance id."""


class UnsupportedAssignorError(KafkaError, code=112):
    """The group has no such assignor, or not in this version."""


class StaleMemberEpochError(KafkaError, code=113):
    """The member's epoch is old; the next heartbeat brings the new one."""


class MismatchedEndpointTypeError(KafkaError, code=114):
    """This listener does not serve that kind of endpoint."""


class UnsupportedEndpointTypeError(KafkaError, code=115):
    """This kind of endpoint is not supported."""


class UnknownControllerIdError(KafkaError, code=116):
    """The controller id is not known."""


class UnknownSubscriptionIdError(KafkaError, code=117):
    """The telemetry subscription is unknown or out of date."""


class TelemetryTooLargeError(KafkaError, code=118):
    """The telemetry is larger than the broker accepts."""


class InvalidRegistrationError(KafkaError, code=119):
    """The registration is not valid."""


class TransactionAbortableError(KafkaError, code=120):
    """The transaction had an error; the producer can abort it and continue."""


class InvalidRecordStateError(KafkaError, code=121):
    """The record is in a state that does not allow this acknowledgement."""


class ShareSessionNotFoundError(KafkaError, code=122, retriable=True):
    """The share session does not exist."""


class InvalidShareSessionEpochError(KafkaError, code=123, retriable=True):
    """The share session's epoch is not the expected one."""


class FencedStateEpochError(KafkaError, code=124):
    """The share group's state epoch does not match."""


class InvalidVoterKeyError(KafkaError, code=125):
    """The voter's key is not the receiving replica's."""


class DuplicateVoterError(KafkaError, code=126):
    """The voter is in the set already."""


class VoterNotFoundError(KafkaError, code=127):
    """The voter is not in the set."""


class InvalidRegularExpressionError(KafkaError, code=128):
    """The regular expression is not valid."""


class RebootstrapRequiredError(KafkaError, code=129):
    """The client's metadata is too old; it should start again from its bootstrap servers."""


class StreamsInvalidTopologyError(KafkaError, code=130):
    """The topology is not valid."""


class StreamsInvalidTopologyEpochError(KafkaError, code=131):
    """The topology's epoch is not valid."""


class StreamsTopologyFencedError(KafkaError, code=132):
    """The topology's epoch is older than the group's."""


class ShareSessionLimitReachedError(KafkaError, code=133, retriable=True):
    """No more share sessions can be opened for now."""
