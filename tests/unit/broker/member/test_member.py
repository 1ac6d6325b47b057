"""Check of a cluster's metadata before a member joins it."""

from __future__ import annotations

import pytest

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.broker.errors import StartError
from tidelog.broker.member.member import check_image
from tidelog.broker.metadata.metadata_image import AccessRule, MetadataImage

IMAGE = MetadataImage(
    features={"metadata.version": 25}, acls={b"i" * 16: AccessRule(2, "orders", 3, "User:ann", "*", 3, 3)}
)


def test_a_cluster_with_acls_is_joined_with_an_authorizer_only() -> None:
    check_image(IMAGE, BrokerConfig({"authorizer.class.name": STANDARD_AUTHORIZER}))
    with pytest.raises(StartError, match="cannot join: the metadata have 1 ACLs"):
        check_image(IMAGE, BrokerConfig({}))
