"""Tidelog: a Kafka broker in Python.

    import tidelog

    with tidelog.Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

``Broker`` is a broker in a process of its own, ``Security`` its TLS, users and ACLs, ``Laboratory`` its controls for
tests (clock, faults, snapshots). ``Tidelog`` finds records in a running broker, ``scan`` reads logs from their files as
Arrow batches. The ``tidelog`` command, Spark's data source and the pytest plugin have other functions. The names are
imported on first use, so that the command starts without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.broker_process import Broker, BrokerProcessError
    from tidelog.broker_security import Security
    from tidelog.find import Tidelog
    from tidelog.laboratory import Laboratory, LaboratoryError
    from tidelog.pipeline.scan.scan import scan

__all__ = ["Broker", "BrokerProcessError", "Laboratory", "LaboratoryError", "Security", "Tidelog", "scan"]


def __getattr__(name: str) -> Any:
    if name == "Tidelog":
        from tidelog import find

        return find.Tidelog
    if name == "scan":
        from tidelog.pipeline.scan.scan import scan

        return scan
    if name == "Security":
        from tidelog import broker_security

        return broker_security.Security
    if name.startswith("Laboratory"):
        from tidelog import laboratory

        return getattr(laboratory, name)
    if name in __all__:
        from tidelog import broker_process

        return getattr(broker_process, name)
    raise AttributeError(f"module 'tidelog' has no attribute {name!r}")
