"""The guardian: a process that outlives its command, and releases what a killed command leaves.

`engine.runtime` starts it; it runs the recovery programs of `engine.leases` in a world of its own. It must stay small: it
imports no google-cloud-tpu, no SSH and no pydantic.
"""
