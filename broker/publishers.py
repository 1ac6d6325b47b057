"""Publishers of the metadata: the parts of a broker that follow its image, in the one order in which they are told.

    features    the levels that ApiVersions shows
    configs     of topics, this node, the cluster, groups and client metrics
    quotas      what clients may use

Each takes (delta, image) in the turn of the commit, from whichever request the records came. A part reads the image
when it is built, and changes from here. What is shown later than it is committed is no matter of theirs: new and
deleted topics, whose logs come first, are in ``broker/controller/topic_changes.py``.

Source: BrokerMetadataPublisher of Kafka 4.3.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.controller.features import show_features

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.metadata.delta import MetadataDelta
    from tidelog.broker.metadata.metadata_image import MetadataImage


def subscribe_publishers(broker: Broker) -> None:
    """Have the parts of a broker follow its controller; called once, before the first request."""
    for publisher in (partial(publish_features, broker), broker.configs.publish, partial(publish_quotas, broker)):
        broker.controller.subscribe(publisher)


def publish_features(broker: Broker, delta: MetadataDelta, image: MetadataImage) -> None:
    """Show the levels of features that changed."""
    if delta.features.changed:
        show_features(image, broker.metadata)


def publish_quotas(broker: Broker, delta: MetadataDelta, image: MetadataImage) -> None:
    """Enforce the client quotas from now on; nothing is built while no client has ever had one."""
    if not delta.quotas.changed:
        return
    quotas = broker.services.quotas
    if quotas.made is not None:
        quotas.made.set(image.quotas)
    elif image.quotas:
        quotas.get()
