"""The brokers that Tidelog is measured against, and Apache Kafka's jars."""
