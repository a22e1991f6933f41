"""The daemon's own paths, `/_emulator/…`: status, billing, settings, rehearsals, faults, the request log, events of nodes.

`daemon` imports this room; it may import every room below it, `api` included. No cloud has these paths: nothing of Google's
API enters, and the client of the cloud never uses them.
"""
