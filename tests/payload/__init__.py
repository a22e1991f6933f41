"""The training of `payload/`: backends, data, checkpoints, placement, with torch on the CPU."""
