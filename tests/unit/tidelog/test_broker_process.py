from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

import tidelog
from benchmarks.rivals.process import free_port
from tidelog import broker_process, broker_security
from tidelog.broker.config.sources import parse_properties
from tidelog.broker_process import Broker, BrokerProcessError, as_text, reserve_port
from tidelog.private_files import write_properties


def test_the_public_names_come_on_first_use() -> None:
    assert tidelog.Broker is Broker
    assert tidelog.BrokerProcessError is BrokerProcessError
    with pytest.raises(AttributeError, match="nonsense"):
        tidelog.nonsense  # noqa: B018


@pytest.mark.parametrize(("value", "text"), [(True, "true"), (False, "false"), (5, "5"), ("a", "a")])
def test_values_as_they_stand_in_server_properties(value: object, text: str) -> None:
    assert as_text(value) == text


def test_a_properties_file_is_the_owners_and_has_the_values_as_given(tmp_path: Path) -> None:
    given = {"ssl.keystore.password": 'a "s\\ecret";\nü', "num.partitions": "3", "super.users": ""}
    write_properties(tmp_path / "server.properties", given)
    assert (tmp_path / "server.properties").stat().st_mode & 0o777 == 0o600
    assert parse_properties((tmp_path / "server.properties").read_text(encoding="utf-8")) == given


def test_a_key_that_no_broker_has_is_refused_and_nothing_stays() -> None:
    broker = Broker({"num.partitons": 3})
    with pytest.raises(
        BrokerProcessError, match=r"num\.partitons: unknown configuration key; the nearest is num\.part"
    ):
        broker.start()
    assert broker.stop() == 0


def test_address_and_process_id_are_known_only_while_the_broker_runs() -> None:
    broker = Broker()
    with pytest.raises(BrokerProcessError):
        _ = broker.bootstrap
    with pytest.raises(BrokerProcessError):
        _ = broker.pid
    assert broker.log_text() == ""
    assert broker.stop() == 0


def test_a_start_that_fails_leaves_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise ImportError("cryptography")

    monkeypatch.setattr(broker_security, "SecuredBroker", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    broker = Broker(security=tidelog.Security(users={"ann": "secret"}))
    with pytest.raises(BrokerProcessError, match="pip install"):
        broker.start()
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_runs_is_not_started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Broker, "_command", lambda _self: ["sh", "-c", "echo tidelog ready on h:1; cat"])
    broker = Broker(data_dir=tmp_path)
    with broker:
        first = broker.pid
        with pytest.raises(BrokerProcessError, match="the broker is running"):
            broker.start()
        assert broker.pid == first


def test_a_restart_whose_stop_fails_leaves_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Broker, "_command", lambda _self: ["sh", "-c", "trap '' TERM; echo tidelog ready on h:1; cat"])
    monkeypatch.setattr(broker_process, "STOP_TIMEOUT_S", 0.1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    broker = Broker().start()
    with pytest.raises(BrokerProcessError, match="did not stop"):
        broker.restart()
    assert broker.stop() == 0
    assert list(tmp_path.iterdir()) == []


def can_bind(port: int) -> bool:
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_only_a_listener_gets_a_reserved_port() -> None:
    port = free_port()
    assert can_bind(port)
    with reserve_port(port):
        assert not can_bind(port)
        with socket.create_server(("127.0.0.1", port)), reserve_port(port):
            socket.create_connection(("127.0.0.1", port)).close()


def test_a_broker_restarts_on_a_reserved_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    port, start, found = free_port(), Broker.start, list[bool]()

    def note_and_start(broker: Broker) -> Broker:
        found.append(can_bind(port))
        return start(broker)

    ready = f"echo tidelog ready on 127.0.0.1:{port}; cat"
    monkeypatch.setattr(Broker, "_command", lambda _self: ["sh", "-c", ready])
    with Broker(data_dir=tmp_path) as broker:
        monkeypatch.setattr(Broker, "start", note_and_start)
        broker.restart()
    assert found == [False]
