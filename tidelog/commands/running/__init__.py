"""Commands that run a broker, ask a running one, or write the file of its tokens.

Imports: ``tidelog.client``, ``tidelog.admin_interface``, and ``tidelog.broker`` when a command runs.
"""
