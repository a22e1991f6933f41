"""Jobs on a cluster: one program submits a JobSet, or attaches to one, and follows its pods to the end."""
