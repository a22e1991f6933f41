"""Stand-ins of what a test does not have: a clock that stands still, leases and ledgers, an API, pods.

Whole worlds are in `tests/simulation/model`. What one file alone needs is in that file.
"""
