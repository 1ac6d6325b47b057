"""WriteTxnMarkers (key 27): a transaction coordinator sends markers, which partition leaders write.

Admin clients also send it, to abort hanging transactions (KIP-664). ``transaction_result`` is true for a commit, false
for an abort. v1 and later are flexible; v2 adds the transaction version, which decides how epochs are compared
(KIP-1228).
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, boolean, int8, int16, int32, int64, string


class WritableTxnMarkerTopic(Struct):
    name: str = string()
    partition_indexes: list[int] = array(int32)


class WritableTxnMarker(Struct):
    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_result: bool = boolean()
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = int32()
    transaction_version: int = int8("2+")


class WriteTxnMarkersRequest(Message, api_key=27, versions="0-2", flexible="1+"):
    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class WritableTxnMarkerTopicResult(Struct):
    name: str = string()
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)


class WritableTxnMarkerResult(Struct):
    producer_id: int = int64()
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)


class WriteTxnMarkersResponse(Message, api_key=27, versions="0-2", flexible="1+"):
    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)
