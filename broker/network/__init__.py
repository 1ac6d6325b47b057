"""Sockets: accepting, receiving frames, sending answers and file slices. It knows no API."""
