"""Programs: async functions that await effects and decide everything about slices, leases and jobs.

A program calls nothing of the outside world itself, so that a simulator can run it with virtual time and a real interpreter
with a real cloud. The client and the report import this package; it imports `core`, and the types of `ledger`, `clouds` and
`remote`. Arguments, settings and output belong to the client.
"""
