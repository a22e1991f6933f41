"""What goes to the workers before a job: which files of a directory, as which manifest, and only what a worker lacks.

`shipment.make_shipment` is the way in, `fleet.fleet.Fleet.push` sends what it returns. It stands on `hosts.ssh`.
"""
