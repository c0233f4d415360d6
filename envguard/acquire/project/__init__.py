"""Readers of the project: code, configuration, data, history."""
