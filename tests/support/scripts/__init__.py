"""Scripts of questions, each for one API in every version that both brokers serve, good requests and bad ones.

A script asks and judges nothing: what Apache Kafka answers is right.
"""
