"""Readers of living processes: of this environment's, and of the one that envguard runs in."""
