"""Processes for the benchmarks: Tidelog, Apache Kafka, the floor, clusters of brokers, Spark; and the jars of Kafka and
of Spark's Kafka source.
"""
