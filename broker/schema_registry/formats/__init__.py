"""Schemas as text become schemas that are checked and written in one way: Avro, JSON Schema and Protobuf.

Imports: fastavro, jsonschema, protobuf and grpcio-tools, each when its first schema comes; nothing of the broker.
Invariant: any text gives a schema or InvalidSchemaError; nothing here holds the event loop, for it runs in a thread.
"""
