"""Formats of schemas: Avro, JSON Schema and Protobuf texts are parsed, checked, and written in canonical form.

Imports: fastavro, jsonschema, protobuf and grpcio-tools, each when its first schema arrives; nothing of the broker.
Invariant: any text gives a schema or InvalidSchemaError; nothing here blocks the event loop, because it runs in a
thread.
"""
