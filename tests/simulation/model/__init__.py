"""The simulated world: time, machines, processes, the cloud, the workers, and the faults that hit them.

Imported by the scenarios and the tests. Only the production programs decide anything: nothing here judges or deletes.
"""
