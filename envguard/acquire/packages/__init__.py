"""Readers of what is installed: environments, distributions, RECORDs, wheels, uv's and pip's caches."""
