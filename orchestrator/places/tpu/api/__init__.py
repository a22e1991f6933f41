"""Cloud TPU: a client on google-cloud-tpu for everything, a light one on the standard library for teardown, one base.

Enter through `connect`, which keeps credentials apart. It stands on `places.google`.
"""
