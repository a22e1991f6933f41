"""A Cloud TPU on loopback: the REST API, TPU VMs with real SSH, metadata servers and a billing meter, in one daemon.

It shares no code with the client, so that both cannot be wrong in the same way; only the catalog (facts) is common.
`cloud_state` is the pure, clock-driven machine; everything else serves it. Clients start and stop the daemon through
`control`.
"""
