"""Benchmarks of Tidelog, many of them beside Apache Kafka in the same run."""
