"""The commands `tpujob emulator ...`: the emulated Cloud TPU, its faults and its capacity.

The table of commands loads these modules by name; nothing else imports them. They talk to the daemon through
`emulator.daemon.control` and its admin API, and import neither the client, nor the engine, nor a cloud.
"""
