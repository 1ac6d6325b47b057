"""The client's side of SASL, sans-io: credentials, and the tokens of an exchange (PLAIN, SCRAM, OAUTHBEARER).

Imports: the errors of tidelog.protocol. Invariant: no error and no representation shows a password.
"""
