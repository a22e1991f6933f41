"""Where the dollars of a month went: the ledger as bills, bills as rows, rows as tables."""
