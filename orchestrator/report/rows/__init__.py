"""What single rows of the ledger and single files of a run say: costs, states, results, and how a cost is written."""
