"""Commands that run a broker, ask a running one, or write the file of its tokens.

Imports: ``tidelog.client``, ``tidelog.admin_interface``, ``tidelog.protocol``, and when a command runs
``tidelog.broker`` and the defaults of brokers for tests.
"""
