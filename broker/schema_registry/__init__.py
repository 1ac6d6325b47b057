"""The schema registry: Confluent's HTTP interface, its state kept in the topic ``_schemas``.

    request -> app -> service -> changes (records to write) -> topic (append, commit) -> state (replay)

``state``, ``records``, ``changes``, ``formats`` and ``compatibility`` use neither sockets nor logs. The registry is off
unless ``schema.registry.listener`` is set. Nothing here is imported before its first connection, or before the console
decodes a first value that names a schema.

Imports: ``admin`` for the guards of an HTTP interface, ``broker``, ``replica`` and the layers below them. Invariant: no
change is confirmed before its records are committed, and ``State.replay`` alone changes the state.
"""
