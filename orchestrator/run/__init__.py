"""The programs of a run: attempts, monitoring, collection, attach, `on: local`, and the end that they share.

`api.jobs` imports it. Programs await effects and return values; files, sockets, sleeps and threads do not belong here.
`job_run` is what is decided before a run (`places.preparation` makes it), `progress` is what becomes of it.
"""
