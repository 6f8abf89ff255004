import pytest


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Threads that wait for each other on a busy machine take many times as long as one."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
