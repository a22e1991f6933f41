"""The ledger: one SQLite file on this machine with every lease, run and attempt, and the ledger's time of each cloud.

The engine writes it through effects; the client and the report read it. It imports `core`, `errors`, `boot_clock` and `fork`.
It stores and decides nothing: which event may follow which is in `promise.lease`.
"""
