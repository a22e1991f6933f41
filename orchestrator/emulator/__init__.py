"""Where the emulator was before it became the package `cloud_tpu_emulator`. Only the pytest plugin is left, for its users."""
