"""Float64 and one seed in every test; one thread, which on small tensors is faster than two."""

from __future__ import annotations

import os

import pytest
import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _float64_and_one_seed():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)
