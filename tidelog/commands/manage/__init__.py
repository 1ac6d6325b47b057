"""Commands that show and change a cluster by Kafka's requests for administration.

Imports: ``tidelog.client`` and ``tidelog.protocol``. ``metadata`` also imports ``tidelog.metadata_follower``,
``tidelog.broker`` and ``tidelog.log``, to follow controllers and to read a metadata log. ``cluster`` also imports
``tidelog.development_cluster`` and the broker's configuration keys.
"""
