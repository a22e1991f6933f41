"""Cloud TPU: a TPU VM, or a queued resource and its node, is the slice. `api/` speaks HTTP."""
