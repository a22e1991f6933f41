"""The commands `tpujob emulator ...`: the daemon, its faults, its nodes and its capacity.

The table of commands loads these modules by name. Each parses arguments, asks the daemon's admin API through
`cloud_tpu_emulator.daemon.control`, and renders the reply; nothing of the product may enter.
"""
