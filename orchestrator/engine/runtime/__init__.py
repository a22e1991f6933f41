"""What runs programs: the interpreter with its signals, the real world, file locks, and the retry rule.

The client and the guardian import it to run programs; programs import only `retry`. No decision about a slice or a job
belongs here.
"""
