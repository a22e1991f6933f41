"""Texts that a job comes from: YAML with its lines, commands, parameters, lines of a requirements file. Pure."""
