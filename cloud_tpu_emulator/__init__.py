"""A Cloud TPU on loopback: the REST and gRPC API, TPU VMs with real SSH, metadata servers and a billing meter, in one daemon.

It shares no code with `tpujob`, so that both cannot be wrong in the same way; only the catalog, facts about this machine
(`orchestrator/system/`) and a checksum are common. Clients know `daemon.control` and nothing else. Rooms import downwards
only; from the bottom up:

    faults                            what can go wrong, and which calls meet it; errors of the API, plain data read strictly
    model                             the state machine: nodes, queued resources, operations, billing, under a passed-in clock;
                                      what the cloud has for which project (`supply`); the state directory (`state`)
    wire                              requests and replies as JSON
    vms                               TPU VMs as local processes, with SSH and metadata servers
    api                               REST, gRPC, authentication, faults on the wire, the request log, and the daemon's own
                                      paths, /_emulator/…
    relay                             the relay of IAP, for tunnels to workers; the proxy for programs that know only Google
    daemon                            the process, and how clients start and stop it
    __main__, fixture, pytest_plugin  the command, an emulator for a program, and the fixture `tpu_emulator` of pytest
"""
