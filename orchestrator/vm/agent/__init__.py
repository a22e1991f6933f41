"""The agent of a connection, the supervisor of a phase, and what it streams."""
