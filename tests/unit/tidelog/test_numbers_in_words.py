"""Words of the command line that should be numbers: other digits, and more of them than ``int`` takes."""

from __future__ import annotations

from typing import Any

import click
import pytest

from tidelog.client import ClientError
from tidelog.client.admin.configs import Resource, address_for
from tidelog.commands.manage.group import parse_partitions

NUMBERS = ["²", "٣", "9" * 5000]


class OneBroker:
    """A stand-in for a cluster of one broker with topics of ten partitions."""

    def brokers(self) -> dict[int, tuple[str, int]]:
        return {3: ("host", 9092)}

    def partition_count(self, _topic: str) -> int:
        return 10


CLUSTER: Any = OneBroker()


@pytest.mark.parametrize("number", NUMBERS)
def test_a_broker_is_named_by_its_id(number: str) -> None:
    assert address_for(CLUSTER, Resource("broker", "3")) == ("host", 9092)
    with pytest.raises(ClientError, match="no broker"):
        address_for(CLUSTER, Resource("broker", number))


@pytest.mark.parametrize("number", NUMBERS)
def test_a_partition_is_named_by_its_number(number: str) -> None:
    assert parse_partitions(CLUSTER, ("orders:0,3",)) == [("orders", 0), ("orders", 3)]
    with pytest.raises(click.UsageError, match="expected TOPIC or TOPIC:0,1"):
        parse_partitions(CLUSTER, (f"orders:{number}",))
