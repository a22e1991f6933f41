"""The pods of a JobSet as workers: their logs, which hold everything that a pod says (`vm/pod/pod.py`), over `PodApi`."""
