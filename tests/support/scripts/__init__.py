"""Scripts of requests, valid and invalid ones, each for one API, in every version that both brokers serve.

A script only sends requests. Tests compare the responses with Apache Kafka's, which are right by definition.
"""
