"""A cluster on one machine for development: a controller of Apache Kafka in a JVM, and Tidelog members.

    kafka_jars   the controller's jars: from a directory, or from a Maven repository
    layout       directories, ports and configuration files of the nodes
    nodes        the processes, which are started and stopped together

``tidelog cluster start`` runs it. Not for production: a single controller is a single point of failure.
Imports: ``tidelog.protocol``, ``tidelog.commands.frame``, ``tidelog.private_files``.
"""
