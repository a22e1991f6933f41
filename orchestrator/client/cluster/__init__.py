"""Jobs on a cluster: from a job file and the settings to the objects that `run` submits, `export` prints and `plan` describes.

Nothing here connects to a cluster. `places.gke.objects` makes the objects; `places.gke.api` sends them.
"""
