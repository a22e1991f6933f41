"""Kubernetes clusters with JobSet and Kueue, such as those of GKE: a JobSet is what a slice is on Cloud TPU."""
