"""What runs in a pod of a cluster, and what its log says."""
