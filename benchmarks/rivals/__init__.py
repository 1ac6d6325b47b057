"""The brokers Tidelog is measured against, and the client jars that prove it to Java."""
