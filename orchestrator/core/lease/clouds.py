"""The clouds of runs and leases, as the ledger names them. Which place each of them belongs to, `orchestrator.places` knows."""

EMULATED = "emulated"


def is_emulated(cloud: str) -> bool:
    """Return whether it is the emulator: the API of Cloud TPU at another address, where nothing is real or billed."""
    return cloud == EMULATED
