"""The node agent: stands for kubelets, for GKE's node pools with their autoscaler, and for what breaks there.

Only `tests/cluster/__main__.py` starts it. Nothing of tpujob may be imported: what it is judged by is not made of its parts.
"""
