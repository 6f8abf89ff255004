"""What the host spends to issue an op: framework dispatch in the forward pass, the autograd engine in the backward, Python
loops over parameters in the optimizer."""

from dataclasses import dataclass

from traincast.spec import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Seconds per framework call and per kernel launch of an eager PyTorch host; a typical server core of 2020."""

    forward_call_s: float = 6e-6
    backward_call_s: float = 4e-6
    optimizer_call_s: float = 6e-6
    """Also carries what a stack does for each parameter besides: hooks, norms, statistics of gradients."""
    launch_s: float = 4e-6

    def issue_s(self, op: Op) -> float:
        if op.phase in ("forward", "recompute"):
            call_s = self.forward_call_s
        else:
            call_s = self.optimizer_call_s if op.phase == "optimizer" else self.backward_call_s
        return op.num_calls * call_s + op.num_kernels * self.launch_s
