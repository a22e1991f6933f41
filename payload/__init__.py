"""The training program that `tpujob` ships to TPU VMs: an image classifier, or a function of the job (`entry:`).

Started as `python -m payload`; the rest of the repository starts it and reads its artifacts (payload/README.md). Modules
here import no package of the repository but `payload`, no cloud library, and run on Python 3.10.
"""
