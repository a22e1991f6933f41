"""Unit tests, in the tree of the code: pure functions, programs in a virtual world, no network and no waiting."""
