"""A log as a follower writes it: appends of the leader's batches, truncation where leader epochs diverge.

Imports: ``tidelog.log.recovery`` and the layers below.
"""
