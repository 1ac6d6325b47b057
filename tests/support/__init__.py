"""Helpers that several tests share: processes, jars, faulty file systems."""
