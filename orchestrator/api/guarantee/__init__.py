"""The guarantee from outside a run: gc, its timer, recovery for the guardian, health checks, and `forget`.

The commands of `tpujob`, the Python API and the guardian call this package. `gc` and the health checks work
without a ledger and without google-cloud-tpu. Nothing here prints or reads arguments.
"""
