"""Runs side by side: the figures of each, the table, and the sentences below it."""
