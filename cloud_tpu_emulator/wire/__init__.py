"""Requests of the API as plain data, and its replies: JSON of nodes, queued resources and operations; the gRPC rules.

Pure, but for the functions of `requests` that read a body. `vms` and `api` import this room; it imports `model`, `supply`,
`api_errors` and the catalog. No route and no socket enters.
"""
