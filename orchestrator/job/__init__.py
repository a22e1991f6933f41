"""The job file, of one job or of a sweep: its models, rules (`rules/`), mistakes with line numbers, JSON Schema.

Pure: text or values in, a JobSpec or a JobSpecError out. `job_spec` is the model; importing it costs pydantic and
yaml. What looks at the disk, such as whether `code:` exists, belongs to the client.
"""
