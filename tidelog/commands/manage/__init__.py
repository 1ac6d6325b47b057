"""Commands that show and change a cluster by Kafka's requests for administration.

Imports: ``tidelog.client``. ``metadata`` also imports ``tidelog.broker``, to follow controllers and to read a metadata
log; ``cluster`` imports ``tidelog.development_cluster`` and the broker's configuration keys.
"""
