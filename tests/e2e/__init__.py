"""The command as real processes on the emulator, killed at any moment. The billing meter of the emulator judges."""
