"""Scripts of valid and invalid requests, each for one API in every version that Tidelog and Apache Kafka serve.

A script only sends requests. Tests compare Tidelog's responses with Apache Kafka's, which are right by definition. The
modules ``spark_*`` and ``s3_server`` are other scripts: programs that tests start as processes.
"""
