"""The rows of the fault matrix, a module a topic; tests/faults/test_matrix.py plays them."""
