"""Readers of the machine under the environment: GPUs, driver, system, boots, package manager, head-room."""
