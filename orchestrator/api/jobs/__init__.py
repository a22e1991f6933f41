"""Jobs: plan, run, follow, cancel, collect and compare them. Every function takes a session and typed values.

The commands of `tpujob` and the Python API call this package. Nothing here prints or reads arguments: what happens is an event
of the session's reporter, a frozen result, or a TpujobError.
"""
