"""Know before you pay: the first steps of a program on this machine's CPU, and the TPU compiler's word on what XLA compiles.

`check.check` does it: `program` stages the job as an emulated worker has it, `play` runs it and hands over the dumps,
`compiler` asks the TPU compiler, and `verdict` says what follows.
"""
