"""Taking over the data directories of Apache Kafka: the source, the plan, and the copy."""
