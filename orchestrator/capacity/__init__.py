"""From requests for capacity to a plan: candidates with zones, prices and reasons; and what follows from a refusal.

Pure. The job file, the client and the engine import this package; it imports `catalog`, `text` and the values of
`promise.lease`. What asks the cloud belongs in `promise.obtain`.
"""
