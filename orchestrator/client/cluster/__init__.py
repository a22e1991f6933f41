"""Jobs on a cluster: from a job file and the settings to the objects that `run` submits, `export` prints and `plan` describes.

Nothing here connects to a cluster. `core.cluster` makes the objects; `clouds.gke` sends them.
"""
