"""`tpujob check`: twelve programs, judged by the real TPU compiler, and what follows from its answers."""
