"""Leases, attempts and claims: the values, their transitions, and the verdicts on them.

Pure: no clock, no file, no network. Every part of the house imports this package; it imports `text` and `errors`. What
decides when to call the cloud stands beside it in `promise/`.
"""
