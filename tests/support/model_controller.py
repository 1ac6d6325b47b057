"""A model of the active controller, as brokers' registrations and heartbeats meet it: sessions, epochs, fencing.

Times are passed in. ``image`` is what a broker that has replayed everything would hold. Source: ClusterControlManager
and BrokerHeartbeatManager of Kafka 4.3.
"""

from __future__ import annotations

from tidelog.broker.metadata.metadata_image import BrokerRegistration, Endpoint, MetadataImage
from tidelog.protocol import errors
from tidelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from tidelog.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse

SESSION_MS = 9000.0
CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"


class ModelController:
    """Registered brokers, their sessions, and the offset of the last record."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerRegistration] = {}
        self.offset = 100
        self.shutdown_offsets: dict[int, int] = {}
        self._heard_ms: dict[int, float] = {}
        self._positions: dict[int, int] = {}

    @property
    def image(self) -> MetadataImage:
        """The newest image."""
        return MetadataImage(offset=self.offset, epoch=1, brokers=dict(self.brokers))

    def expire(self, now_ms: float) -> None:
        """Fence the brokers whose session is over."""
        for broker_id, broker in list(self.brokers.items()):
            if not broker.is_fenced and not self._is_alive(broker_id, now_ms):
                self._change(broker._replace(is_fenced=True))

    def register(self, request: BrokerRegistrationRequest, now_ms: float) -> BrokerRegistrationResponse:
        """Take a registration, unless another process holds the id."""
        if request.cluster_id != CLUSTER_ID:
            return BrokerRegistrationResponse(error_code=errors.InconsistentClusterIdError.code)
        before = self.brokers.get(request.broker_id)
        is_same = before is not None and before.incarnation_id == request.incarnation_id
        if before is not None and not is_same and self._is_alive(request.broker_id, now_ms):
            return BrokerRegistrationResponse(error_code=errors.DuplicateBrokerRegistrationError.code)
        self.offset += 1
        self.brokers[request.broker_id] = BrokerRegistration(
            broker_id=request.broker_id,
            broker_epoch=self.offset,
            incarnation_id=request.incarnation_id,
            endpoints=tuple(Endpoint(one.name, one.host, one.port, one.security_protocol) for one in request.listeners),
            features={one.name: (one.min_supported_version, one.max_supported_version) for one in request.features},
            rack=request.rack,
            is_fenced=True,
            in_controlled_shutdown=False,
            directories=tuple(request.log_dirs),
        )
        self._heard_ms[request.broker_id] = now_ms
        return BrokerRegistrationResponse(broker_epoch=self.offset)

    def beat(self, request: BrokerHeartbeatRequest, now_ms: float) -> BrokerHeartbeatResponse:
        """Take a heartbeat: unfence, fence, or begin a shutdown as it asks."""
        broker = self.brokers.get(request.broker_id)
        if broker is None:
            return BrokerHeartbeatResponse(error_code=errors.BrokerIdNotRegisteredError.code)
        if broker.broker_epoch != request.broker_epoch:
            return BrokerHeartbeatResponse(error_code=errors.StaleBrokerEpochError.code)
        self._heard_ms[broker.broker_id] = now_ms
        self._positions[broker.broker_id] = request.current_metadata_offset
        is_caught_up = request.current_metadata_offset >= broker.broker_epoch
        if request.want_shut_down and not broker.in_controlled_shutdown:
            self._change(broker._replace(in_controlled_shutdown=True))
            self.shutdown_offsets[broker.broker_id] = self.offset
        elif broker.is_fenced and is_caught_up and not request.want_fence:
            self._change(broker._replace(is_fenced=False))
        elif not broker.is_fenced and request.want_fence:
            self._change(broker._replace(is_fenced=True))
        return BrokerHeartbeatResponse(
            is_caught_up=is_caught_up,
            is_fenced=self.brokers[broker.broker_id].is_fenced,
            should_shut_down=request.want_shut_down
            and request.current_metadata_offset >= self.shutdown_offsets[broker.broker_id],
        )

    def forget(self, broker_id: int) -> None:
        """Let another process have the id, as an unregistration of it does."""
        self._heard_ms.pop(broker_id, None)

    def _is_alive(self, broker_id: int, now_ms: float) -> bool:
        heard_ms = self._heard_ms.get(broker_id)
        return heard_ms is not None and now_ms - heard_ms < SESSION_MS

    def _change(self, broker: BrokerRegistration) -> None:
        self.offset += 1
        self.brokers[broker.broker_id] = broker
