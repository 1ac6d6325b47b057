"""What the cluster looks like: the image of topics, and the store it is read from."""
