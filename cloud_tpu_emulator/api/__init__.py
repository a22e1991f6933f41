"""The API of the emulated cloud: REST and gRPC, authentication, faults on the wire, the request log, the daemon's own paths.

`relay` and `daemon` import this room; it may import every room below it. Nothing is decided here that
`model` can decide.
"""
