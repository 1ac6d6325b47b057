"""The parties of a soak: clients of every kind that know at the end what the broker must hold."""
