"""Principals: equal by value, and written as ACLs write them."""

from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.principal import ANONYMOUS, Principal


def test_a_principal_is_written_with_its_type() -> None:
    assert str(Principal("User", "CN=ann,O=a:b")) == "User:CN=ann,O=a:b"
    assert f"{ANONYMOUS}" == "User:ANONYMOUS"


def test_principals_are_equal_by_value() -> None:
    assert Principal("User", "ann") == Principal("User", "ann") != Principal("Group", "ann")
    assert len({Principal("User", "ann"), Principal("User", "ann"), ANONYMOUS}) == 2


def test_a_connection_is_anonymous_until_it_authenticates() -> None:
    context = RequestContext()
    assert context.principal == ANONYMOUS
    assert not context.token_authenticated
