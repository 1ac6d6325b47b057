"""Laboratory controls of a broker for tests: a clock that is moved, injected faults, snapshots of all state.

Only ``tidelog serve --laboratory`` imports it, with a socket pair that its starter keeps, and ``tidelog serve
--laboratory-listener``, for tests in other languages on the same machine. A broker without these options has none of
it, neither the modules nor a check on any request.
Imports: ``tidelog.broker.server`` and what is below it.
"""
