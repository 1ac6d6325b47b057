"""Connections of a member to the active controller.

If the controller's process hangs, its connections stay open, but no request is answered. Requests to it fail after
their timeout, or earlier, when the observer of the metadata learns of another leader. Loop thread only.
"""

from __future__ import annotations

from tidelog.broker.cluster.forwarding import FORWARDED
from tidelog.broker.cluster.quorum import QuorumView
from tidelog.broker.controller.metadata_controller import ForwardedVersions
from tidelog.broker.member.config import ControllerTimeouts
from tidelog.broker.member.connections.channel import Channel
from tidelog.broker.member.connections.security import PeerSecurity


class ControllerChannels:
    """The connections of one member to the active controller, one for each kind of request."""

    def __init__(self, timeouts: ControllerTimeouts, security: PeerSecurity) -> None:
        self._timeouts = timeouts
        self._security = security
        self._channels: list[Channel] = []
        self._heartbeats: Channel | None = None

    def for_metadata(self) -> Channel:
        """Return a connection for fetches of the metadata. ``follow`` does not end its requests: the observer of the
        metadata chooses the node to ask.
        """
        return Channel(self._timeouts.metadata_s, self._security)

    def for_heartbeats(self) -> Channel:
        """Return a connection for the registration and the heartbeats."""
        self._heartbeats = self._open(self._timeouts.heartbeat_s)
        return self._heartbeats

    def forwarded_versions(self) -> ForwardedVersions:
        """Return the versions of each forwarded API on the controller that gets the heartbeats, None for an API that it
        does not know; empty before the first answer.
        """
        served = {} if self._heartbeats is None else self._heartbeats.last_served
        return {key: served.get(key) for key in FORWARDED} if served else {}

    def open(self) -> Channel:
        """Return a connection for another kind of request."""
        return self._open(self._timeouts.other_s)

    def _open(self, timeout_s: float) -> Channel:
        self._channels.append(Channel(timeout_s, self._security))
        return self._channels[-1]

    def follow(self, quorum: QuorumView) -> None:
        """Let requests to controllers other than the known leader fail now, so that their senders ask the leader."""
        if quorum.leader_address is not None:
            for channel in self._channels:
                channel.turn_to(quorum.leader_address)
