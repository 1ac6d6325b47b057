"""``format("tidelog")`` for reading: the batch reader and the streaming reader."""
