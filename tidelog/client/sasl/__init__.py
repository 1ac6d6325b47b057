"""The client's side of SASL: credentials from a profile, and the login of a connection (PLAIN, SCRAM, OAUTHBEARER).

Imports: tidelog.client.wire, the broker's parser of JAAS texts and its exchanges as a client, tidelog.protocol.
"""
