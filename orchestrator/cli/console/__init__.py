"""What a command prints: the console of the process, lines and tables for a terminal, and the view below a running job."""
