"""The virtual environment of a job, and why nothing can be installed."""
