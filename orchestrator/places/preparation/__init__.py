"""What is decided before a run: checks, what is shipped, scripts, variables, requirements, and the `JobRun` of all of it.

`client` imports this room; it imports `promise.obtain` and the values of `run`. No programs, and nothing is sent.
"""
