"""The pure part of tpujob: values, rules and verdicts. No clock, no file, no network, no random number.

`text` has no dependency; `planning`, `jobfile` and `lease` build on it. Everything else may import this package; it imports
only `catalog` and `errors`.
"""
