from __future__ import annotations

import pytest

import tidelog
from tidelog.broker_process import Broker, BrokerProcessError, as_text


def test_the_public_names_come_on_first_use() -> None:
    assert tidelog.Broker is Broker
    assert tidelog.BrokerProcessError is BrokerProcessError
    with pytest.raises(AttributeError, match="nonsense"):
        tidelog.nonsense  # noqa: B018


@pytest.mark.parametrize(("value", "text"), [(True, "true"), (False, "false"), (5, "5"), ("a", "a")])
def test_values_as_they_stand_in_server_properties(value: object, text: str) -> None:
    assert as_text(value) == text


def test_what_is_known_only_while_it_runs() -> None:
    broker = Broker()
    with pytest.raises(BrokerProcessError):
        _ = broker.bootstrap
    with pytest.raises(BrokerProcessError):
        _ = broker.pid
    assert broker.log_text() == ""
    assert broker.stop() == 0
