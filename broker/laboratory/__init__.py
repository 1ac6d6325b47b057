"""Laboratory: controls of a broker for tests, which move its clock, inject faults, and snapshot and restore its state.

It is imported only by ``tidelog serve --laboratory``, which the Python test helpers start with a socket pair, and by
``tidelog serve --laboratory-listener``, for tests in other languages on the same machine. A broker without these
options imports none of these modules, and checks nothing for them on any request.
Imports: ``tidelog.broker.server`` and what is below it.
"""
