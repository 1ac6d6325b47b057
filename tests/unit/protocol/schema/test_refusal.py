"""Error responses that are built in parts: joined they are equal to the response built at once, and each part is
short."""

from __future__ import annotations

import importlib
import random
from typing import Any

import pytest

from tests.support.depth import DEPTH
from tests.support.long_requests import request_class
from tests.unit.broker.stepping import response_of
from tidelog.broker.requests.registry import REGISTRY
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import ClusterAuthorizationFailedError
from tidelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidelog.protocol.schema.fields import Field, Struct
from tidelog.protocol.schema.refusal import cut, refuse_in_steps, weight

EXAMPLES = 100 * DEPTH
MAX_IN_ARRAY, MAX_ELEMENTS = 5, 12
ERROR = ClusterAuthorizationFailedError("no")


def random_struct(cls: type[Struct], version: int, draw: random.Random) -> Any:
    """Build a struct whose arrays have some elements each, often alike."""
    found = cls()
    for field in cls.FIELDS:
        if field.versions.has(version):
            setattr(found, field.name, random_value(field, version, draw))
    return found


def random_value(field: Field, version: int, draw: random.Random) -> Any:
    if field.kind == "array":
        item: Any = field.item
        one = random_value if isinstance(item, Field) else random_struct
        return [one(item, version, draw) for _ in range(draw.randrange(MAX_IN_ARRAY + 1))]
    if field.kind == "struct":
        return random_struct(field.item, version, draw)  # type: ignore[arg-type]
    if field.kind == "string":
        return draw.choice("ab")
    if field.kind.startswith(("int", "uint")):
        return draw.randrange(2)
    if field.kind == "uuid":
        return bytes([draw.randrange(2)]) * 16
    return field.default


def versions(api_key: int) -> list[int]:
    entry = REGISTRY[api_key]
    return sorted({entry.min_version, (entry.min_version + entry.max_version) // 2, entry.max_version})


@pytest.mark.hypothesis  # for `make fuzz-deep`
@pytest.mark.parametrize("api_key", list(REGISTRY), ids=lambda key: ApiKey(key).name)
def test_the_parts_are_answered_as_the_whole(api_key: int) -> None:
    """Other seeds are tried in each run. Hypothesis would only choose seeds, and take two thirds of the time."""
    for _ in range(EXAMPLES):
        seed, max_elements = random.randrange(2**32), random.randint(1, MAX_ELEMENTS)
        try:
            require_equal_answers(api_key, seed, max_elements)
        except Exception as error:
            error.add_note(f"seed {seed}, {max_elements} elements in a part")
            raise


def require_equal_answers(api_key: int, seed: int, max_elements: int) -> None:
    handler = importlib.import_module(REGISTRY[api_key].module)
    for version in versions(api_key):
        request = random_struct(request_class(api_key), version, random.Random(seed))
        whole = response_of(handler.error_response(request, ERROR))
        found = response_of(refuse_in_steps(handler.error_response, request, ERROR, max_elements))
        assert found.encode(version) == whole.encode(version)


def test_each_part_has_few_elements() -> None:
    draw = random.Random(4)
    request = random_struct(ListOffsetsRequest, 7, draw)
    request.topics = [
        ListOffsetsTopic(name=str(count), partitions=[ListOffsetsPartition(partition_index=n) for n in range(count)])
        for count in (0, 1, 100, 7, 2, 0, 30)
    ]
    parts = list(cut(request, 10))
    assert max(weight(part.struct, 1000) for part in parts) <= 10 + 2  # the request and the topic that goes on
    assert [part.depth for part in parts][:4] == [0, 1, 2, 2]
    indices = [one.partition_index for part in parts for topic in part.struct.topics for one in topic.partitions]
    assert indices == [one.partition_index for topic in request.topics for one in topic.partitions]


def test_counting_ends_when_there_are_too_many() -> None:
    topic = ListOffsetsTopic(name="a", partitions=[ListOffsetsPartition()])
    assert weight(ListOffsetsRequest(topics=[topic] * 1_000), 20) == 21
