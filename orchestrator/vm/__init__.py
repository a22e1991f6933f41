"""What is shipped to the workers: the supervisor of a job's phases, the packer of artifacts, and the watchdog.

Standard library only, Python 3.8 or newer, and imports only of siblings: `hosts.ssh.agent` ships these files in
`~/tpujob/bin/agent-<hash>.zip` and starts `serve` there, one agent for each connection, which runs the verbs of
`__main__`. Other rooms import nothing from here; they read the files (`hosts.ssh.agent`, `promise.obtain.startup_script`).
"""
