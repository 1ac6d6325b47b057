"""Path of a request from its frame to an answer: table of APIs, routes, dispatch, bounds, throttling.

Imports: ``tidelog.broker.coordinator``, ``share``, ``find``, ``quota`` and the layers below; handlers are loaded by
name.
Invariant: ApiVersions advertises only what the registry serves, and a request beyond its bounds never reaches a
handler.
"""
