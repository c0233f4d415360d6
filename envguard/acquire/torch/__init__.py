"""Readers of the torch build and of its compile caches, without importing torch or unpickling anything."""
