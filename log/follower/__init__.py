"""A log as a follower writes it: appends of the leader's batches, truncation where epochs part.

Imports: ``tidelog.log.recovery`` and the layers below.
"""
