"""Brokers as processes of the benchmarks: Tidelog, Apache Kafka, clusters of either, the floor, Spark; and Kafka's
jars.
"""
