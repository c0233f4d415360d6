"""Readers of what trainers leave behind: checkpoints, stamps, logs, trackers, envguard's own records."""
