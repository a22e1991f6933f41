"""`python -m orchestrator.cli`: the same as `tpujob`."""

from orchestrator.cli.app import main

main()
