"""Tests of the launch: placement of processes on hosts and chips."""
