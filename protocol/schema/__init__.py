"""Declared messages and their coders: fields with version ranges, compiled to Python source for one version on first
use."""
