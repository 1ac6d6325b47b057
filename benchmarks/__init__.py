"""Benchmarks: Tidelog beside Apache Kafka in one run."""
