"""Client quotas: the measured rates of users and clients, and how long a client has to wait. Limits of connections by
address.

Imports: ``tidelog.broker.cleaning`` and the layers below; not ``find``.
Invariant: of the quotas that are set, the most specific applies, for each quota key by itself.
"""
