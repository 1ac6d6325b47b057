"""What must be fast, measured beside Apache Kafka in one run."""
