"""Helpers that tests share: broker processes, Java programs, faulty file systems, models, rules of the tidy tests."""
