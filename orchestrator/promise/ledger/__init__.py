"""The ledger: one SQLite file on this machine with every lease, run and attempt, and the ledger's time of each cloud.

Programs write it through effects; the API and reports read it. It stores and decides nothing: which event may follow which
is in `promise.lease`.
"""
