"""Requests about SCRAM credentials to a cluster that knows mechanisms which this version does not."""

from __future__ import annotations

from typing import Any, cast

from tidelog.client.admin.users import Credential, delete_credentials, list_credentials
from tidelog.client.cluster import Cluster
from tidelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from tidelog.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


class NewerCluster:
    """A cluster in which ann has passwords for SCRAM-SHA-256 and mechanism 9."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def ask(self, request: Any, response: Any, **_: Any) -> Any:
        self.asked.append(request)
        if isinstance(request, AlterUserScramCredentialsRequest):
            return AlterUserScramCredentialsResponse(results=[])
        infos = [CredentialInfo(mechanism=1, iterations=4096), CredentialInfo(mechanism=9, iterations=5000)]
        return DescribeUserScramCredentialsResponse(
            results=[DescribeUserScramCredentialsResult(user="ann", credential_infos=infos)]
        )


def test_a_mechanism_of_a_newer_cluster_is_listed_and_deleted_by_its_number() -> None:
    """``user delete`` without --mechanism deletes all that it lists; it ended with a KeyError."""
    newer = NewerCluster()
    cluster = cast("Cluster", newer)
    found = list_credentials(cluster, ["ann"])
    assert found == [Credential("ann", "SCRAM-SHA-256", 4096), Credential("ann", "unknown (9)", 5000)]
    delete_credentials(cluster, "ann", [one.mechanism for one in found])
    assert [one.mechanism for one in newer.asked[-1].deletions] == [1, 9]
