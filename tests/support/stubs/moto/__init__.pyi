"""What `tests/support/scripts/s3_server.py` uses of moto: mypy reads these lines, not the 670 modules of moto."""
