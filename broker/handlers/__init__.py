"""One module per API key: what the broker answers.

Imports: ``tidelog.broker.network`` and the layers below; not ``admin`` or ``adoption``.
Invariant: a module's key and versions are those of its line in ``tidelog.broker.requests.registry``.
"""
