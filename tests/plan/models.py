"""Small jobs that can be posed at any batch."""

from collections.abc import Callable

from traincast.catalog._workloads import from_shape
from traincast.spec import Job, Parallelism


def pose_transformer(
    *, layers: int = 6, experts: int | None = None, steps: int = 100, hidden: int = 256
) -> Callable[[int, str], Job]:
    def pose(batch: int, plan: Parallelism) -> Job:
        graph = from_shape(
            arch="llama", n_layers=layers, hidden=hidden, heads=8, kv_heads=4, vocab=32_000, seq=2048, batch=batch,
            precision="bf16", recompute=plan.recompute, experts=experts, experts_per_token=2 if experts else None,
        )  # fmt: skip
        return Job(graph=graph, steps=steps)

    return pose
