"""From requests for capacity to a plan: candidates with zones, prices and reasons.

Pure: it imports `catalog` and `text`. What asks the cloud, and what follows from a refusal, is in `promise.obtain`.
"""
