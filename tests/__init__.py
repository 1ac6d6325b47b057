"""Tests of Tidelog."""
