"""Tests of the data sets: files, sources and batches."""
