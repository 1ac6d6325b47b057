"""Address of the active controller: the bootstrap addresses, and the leader that the controllers' answers name.

Source: QuorumState and RequestManager of Kafka 4.3; KIP-595, KIP-853 for the leader's endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

UNKNOWN_LEADER = -1


class Address(NamedTuple):
    """Host and port of a controller or broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class QuorumView:
    """The newest leader and epoch that an answer named; while the leader's address is unknown, the bootstrap addresses
    are used in turn.
    """

    __slots__ = ("_address", "_bootstrap", "_turn", "epoch", "leader_id")

    def __init__(self, bootstrap: Sequence[Address]) -> None:
        if not bootstrap:
            raise ValueError("no bootstrap controller is given")
        self.leader_id = UNKNOWN_LEADER
        self.epoch = 0
        self._address: Address | None = None
        self._bootstrap = tuple(bootstrap)
        self._turn = 0
        """Index of the bootstrap address that is used while the leader's is unknown."""

    @property
    def address(self) -> Address:
        """The controller to ask next."""
        return self._address or self._bootstrap[self._turn]

    @property
    def leader_address(self) -> Address | None:
        """The leader's address, None while it is not known."""
        return self._address

    def learn(self, leader_id: int, epoch: int, endpoints: Mapping[int, Address]) -> bool:
        """Take the leader that an answer names; return whether the leader, its epoch or its address has changed."""
        if epoch < self.epoch:
            return False
        before = (self.leader_id, self.epoch, self._address)
        if epoch > self.epoch:
            self.leader_id, self.epoch, self._address = UNKNOWN_LEADER, epoch, None
        if leader_id != UNKNOWN_LEADER:
            self.leader_id = leader_id
            self._address = endpoints.get(leader_id, self._address)
        return (self.leader_id, self.epoch, self._address) != before

    def confirm(self, address: Address) -> None:
        """Keep using an address that answered as the leader, even if the leader advertises another one."""
        self._address = address

    def lose_leader(self) -> None:
        """Forget the leader's address; the next request goes to the next bootstrap address."""
        self._address = None
        self._turn = (self._turn + 1) % len(self._bootstrap)
