"""What is decided before a run: checks, what is shipped, scripts, variables, requirements, and the `JobRun` of all of it.

Places and `api.jobs` import it. No programs, and nothing is sent.
"""
