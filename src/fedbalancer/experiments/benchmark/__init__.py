"""The time-to-accuracy benchmark (`fedbalancer benchmark`): a frozen suite, equal tuning, and results to verify."""
