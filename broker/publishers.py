"""Publishers of the metadata: the parts of a broker that follow its image, in the order in which they are called.

    ACLs         what clients may do
    features     the levels that ApiVersions shows
    configs      of this node, the cluster, groups and client metrics
    directories  the log directories that are cordoned
    quotas       what clients may use
    topics       on a lone node: reserved names, deletions, and configs of topics

Each is called with (delta, image) for every change, even if another one has raised an exception. On a lone node it is
called in the turn of the commit, in a member of a cluster once the observer has the image. A part reads the image when
it is built; it gets later changes from its publisher. Settings come before topics, so that a new log has them from its
first record.

On a lone node ``TopicManager.publish`` reserves the names of new topics, hides deleted topics and puts topic configs in
force. ``broker/controller/topic_changes.py`` does the rest: it creates and removes logs, shows new topics, and makes
the coordinators forget deleted ones. In a member, the MetadataPublisher applies changes of topics after these
publishers. There ``DirectoryReports`` subscribes later: it tells the controllers which directories are cordoned.

Source: BrokerMetadataPublisher of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.controller.features import show_features
from tidelog.broker.controller.metadata_controller import Publisher

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.metadata.delta import MetadataDelta
    from tidelog.broker.metadata.metadata_image import MetadataImage


def subscribe_publishers(broker: Broker) -> None:
    """Cordon the configured directories, and register the publishers at the broker's controller. Called once, before
    the first request."""
    broker.log_manager.cordon(broker.config.cordoned_log_dirs)
    for publisher in publishers_of(broker):
        broker.controller.publishers.subscribe(publisher)


def publishers_of(broker: Broker) -> Iterator[Publisher]:
    """Yield the publishers in their order."""
    if broker.authorizer is not None:
        yield Publisher("ACLs", broker.authorizer.publish)
    yield Publisher("features", partial(publish_features, broker))
    yield Publisher("configs", broker.configs.publish)
    yield Publisher("directories", partial(publish_directories, broker))
    yield Publisher("quotas", partial(publish_quotas, broker))
    yield Publisher("topics", broker.topics.publish)


def publish_features(broker: Broker, delta: MetadataDelta, image: MetadataImage) -> None:
    """Show clients the levels of features in force, if any changed."""
    if delta.features.changed:
        show_features(image, broker.metadata)


def publish_directories(broker: Broker, delta: MetadataDelta, image: MetadataImage) -> None:
    """Cordon the log directories that ``cordoned.log.dirs`` names now, and no others, if any config changed."""
    if delta.configs.changed:
        broker.log_manager.cordon(broker.config.cordoned_log_dirs)


def publish_quotas(broker: Broker, delta: MetadataDelta, image: MetadataImage) -> None:
    """Enforce the image's client quotas from now on, if any changed. The service is built with the first quota."""
    if not delta.quotas.changed:
        return
    quotas = broker.services.quotas
    if quotas.made is not None:
        quotas.made.set(image.quotas)
    elif image.quotas:
        quotas.get()
