"""Tests of the backends: torch_tpu by a stand-in, and a GPU where there is one."""
