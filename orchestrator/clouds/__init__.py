"""The clouds: each a package that implements `core.lease.cloud_api.Cloud` for one provisioning API.

`google` has what any Google API needs; `tpu` is Cloud TPU, real and emulated. Only the client imports this package; it
imports `core`, `settings` and `errors`. It decides nothing: retries, deadlines and proofs belong to `engine`.
"""
