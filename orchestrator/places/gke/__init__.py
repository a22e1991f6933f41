"""A cluster on GKE: a JobSet is the slice, its pods are the workers.

`objects/` is pure, `api/` speaks HTTP, `pods/` reads logs.
"""
