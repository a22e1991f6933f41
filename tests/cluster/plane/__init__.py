"""The programs of a control plane: etcd, Kubernetes, JobSet and Kueue as processes of this machine, with their certificates."""
