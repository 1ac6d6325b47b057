"""Commands that show and change a cluster over its admin API.

Imports: all of ``tidelog.client``; ``metadata`` also reads the files of a metadata log.
"""
