"""Where a job runs: a slice of the Cloud TPU API, the pods of a JobSet, this machine. A folder for each, and one contract.

The contract is `place.py`; the promises that it makes are played on every place by `tests/places/`. `google/` is shared:
credentials, the translation of errors, buckets. Outside of this package nothing asks of which kind a place is.
"""
