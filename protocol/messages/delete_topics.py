"""DeleteTopics (key 20): delete topics.

v1 adds throttle time; v3 adds TOPIC_DELETION_DISABLED; v4 is flexible; v5 adds an error message (KIP-599); v6 names
topics by name or by id, in ``topics`` instead of ``topic_names`` (KIP-516).
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, int16, int32, string, uuid


class DeleteTopicState(Struct):
    name: str | None = string("6+", nullable="6+", default=None)
    topic_id: bytes = uuid("6+")


class DeleteTopicsRequest(Message, api_key=20, versions="0-6", flexible="4+"):
    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+")
    topic_names: list[str] = array(string, "0-5")
    timeout_ms: int = int32()


class DeletableTopicResult(Struct):
    name: str | None = string(nullable="6+")
    topic_id: bytes = uuid("6+")
    error_code: int = int16()
    error_message: str | None = string("5+", nullable="5+", default=None)


class DeleteTopicsResponse(Message, api_key=20, versions="0-6", flexible="4+"):
    throttle_time_ms: int = int32("1+")
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)
