"""The queue: its record, what is decided from it, and the programs that carry it on."""
