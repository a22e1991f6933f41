"""A job on a cluster, by JobSet and Kueue: its manifests, and what the control plane says of its pods. Pure."""
