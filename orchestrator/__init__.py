"""tpujob: run training jobs on Cloud TPUs and never pay for a forgotten one."""

__version__ = "0.1.0"
