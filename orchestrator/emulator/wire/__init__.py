"""Requests of the API as plain data, and its replies: JSON of nodes, queued resources and operations; the gRPC rules.

Pure, but for `json_body`, which reads a request. `vms`, `api` and `admin` import this room; it imports `model`, `supply`,
`api_errors` and the catalog. No route and no socket enters.
"""
