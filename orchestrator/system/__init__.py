"""Facts about this machine and this process, which know nothing of TPUs."""
