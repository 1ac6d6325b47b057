"""The client's side of SASL: credentials from a profile, and the login of a connection (PLAIN, SCRAM, OAUTHBEARER).

Imports: tidelog.client.wire and tidelog.client.trust; of the broker the JAAS parser, the SASL exchanges of a client,
HTTP connections with a deadline and the check for loopback addresses; tidelog.protocol.
"""
