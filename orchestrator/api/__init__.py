"""The service layer: what `tpujob` does, as functions and methods that take values and return values.

The CLI and the Python API (`tpujob/`) import it; it imports report, engine, ledger, clouds and remote. Nothing here parses
arguments or prints: `session` owns settings, ledger, locks and credentials, `lookup` finds runs and slices by their names,
and `events` has what is reported.
"""
