"""Models this small are fastest on one thread, and threads that spin starve the tests beside them."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
