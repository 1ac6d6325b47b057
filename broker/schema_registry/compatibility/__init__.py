"""Rules of compatibility of each format: whether data of one schema can be read with another.

Imports: ``formats``; protobuf and re2, each when it is first needed.
Invariant: pure functions over parsed schemas; they run in a thread.
"""
