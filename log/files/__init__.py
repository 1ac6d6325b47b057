"""What lies beside the records of a partition: its files by name, checkpoints, and the topic and partition a directory
is named by."""
