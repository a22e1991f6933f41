"""A real control plane to be judged by, on loopback: etcd, Kubernetes, JobSet and Kueue as they are released.

`build.py` makes the binaries (`make cluster`), `plane/` starts them, `agent/` stands for what only Google has: nodes that come,
bill and go, and pods that run on them. `fixture.py` is what a test sees, `__main__.py` what a person tries. `ground/` tests
what all of that does without tpujob; the tests here, what tpujob does on it.
Not here: the webhooks and the autoscaler of GKE, a real kubelet, a network between pods, TPUs.
"""
