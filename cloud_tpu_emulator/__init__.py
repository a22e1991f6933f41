"""A Cloud TPU on loopback: the REST and gRPC API, TPU VMs with real SSH, metadata servers and a billing meter, in one daemon.

It shares no code with the client, so that both cannot be wrong in the same way; only the catalog (facts), `boot_clock` and
`peers` are common. Clients know `daemon.control` and nothing else. Rooms import downwards only; from the bottom up:

    api_errors, plain_data            errors of the API; strict reading of plain data
    faults                            what can go wrong, and which calls meet it
    supply                            what the cloud has for which project
    model                             the state machine: nodes, queued resources, operations, billing, under a passed-in clock
    state, wire                       the state directory; requests and replies as JSON
    vms                               TPU VMs as local processes, with SSH and metadata servers
    api                               REST, gRPC, authentication, faults on the wire, the request log, and the daemon's own
                                      paths, /_emulator/…
    relay                             the relay of IAP, for tunnels to workers
    daemon                            the process, and how clients start and stop it
    __main__, pytest_plugin           the command, and the fixture `tpu_emulator` for any test suite
"""
