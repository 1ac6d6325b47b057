"""The client's side of SASL: credentials from a profile, and the login of a connection (PLAIN, SCRAM, OAUTHBEARER).

Imports: tidelog.client.wire, the broker's JAAS parser and SASL exchanges of a client, tidelog.protocol.
"""
