import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """Networks of a few units: a second thread costs more than it brings, on a busy machine many times as much."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
