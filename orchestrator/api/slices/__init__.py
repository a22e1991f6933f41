"""Held slices, the status of all slices, and the offers: `up`, `down`, `stop`, `start`, `extend`, `ssh`, `status`, `offers`.

The commands of `tpujob` and the Python API call this package. Nothing here prints or reads arguments: what happens is an event
of the session's reporter, a frozen result, or a TpujobError.
"""
