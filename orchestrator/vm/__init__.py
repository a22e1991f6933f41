"""What is shipped to the workers: the supervisor of a job's phases, the packer of artifacts, and what a pod runs.

Standard library only, Python 3.8 or newer, and imports only of siblings: `hosts.ssh.agent` ships these files in
`~/tpujob/bin/agent-<hash>.zip` and starts `agent/serve.py` there, one agent for each connection, which runs the verbs of
`__main__`. Other rooms import next to nothing from here; they read the files.
"""
