"""Files on a worker: those of a phase, what was shipped, what is new beside the artifacts, and the packer of results."""
