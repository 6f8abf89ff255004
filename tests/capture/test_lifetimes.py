"""Memory that reads and writes alone do not show."""

import pytest
import torch
from torch import nn
from torch.func import hessian, vmap
from torch.nn import functional as F

from tests.capture.replay import peak_bytes
from traincast.capture import capture


class Fourier(nn.Module):
    """The backward pass of a real transform pads its gradient, which lives on beside the padded one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.weight = nn.Parameter(torch.zeros(33, 64, dtype=torch.cfloat))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(self.layer(x), dim=1) * self.weight, n=64, dim=1)


class Warped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features, self.places = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(3 * 32 * 32, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moved = self.places(x.flatten(1)).view(-1, 2, 3)
        grid = F.affine_grid(moved, [x.shape[0], 16, 32, 32], align_corners=False)
        return F.grid_sample(self.features(x), grid, align_corners=False)


def spectral() -> nn.Module:
    norm = nn.utils.parametrizations.spectral_norm
    return nn.Sequential(*(part for _ in range(3) for part in (norm(nn.Linear(256, 256)), nn.LeakyReLU(0.1))))


def quantised() -> nn.Module:
    """Weights and activations pass a fake quantiser."""

    class Rounded(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
            weight = torch.fake_quantize_per_tensor_affine(self.weight, scale, zero, -128, 127)
            return torch.fake_quantize_per_tensor_affine(F.linear(x, weight, self.bias), scale, zero, -128, 127)

    return nn.Sequential(Rounded(128, 128), nn.ReLU(), Rounded(128, 128))


@pytest.mark.filterwarnings("ignore:Module is None", "ignore:Anomaly")
@pytest.mark.parametrize(
    ("build", "shape"),
    [(Fourier, (8, 64, 64)), (Warped, (4, 3, 32, 32)), (spectral, (64, 256)), (quantised, (64, 128))],
)
def test_what_lives_unread_counts_at_the_peak_as_the_tracker_counts_it(
    build: type[nn.Module], shape: list[int]
) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model, x = build(), mode.from_tensor(torch.zeros(shape))
        tracker = MemTracker()
        tracker.track_external(model, x)
        with tracker:
            output = model(x)
            output.float().mean().backward()
        snapshot = tracker.get_tracker_snapshot("peak").values()
        peak = max(amount for part in snapshot for key, amount in part.items() if str(key) == "Total")
    graph = capture(build, lambda: torch.zeros(shape), mode="forward_backward", folded=False)
    assert peak_bytes(graph) == pytest.approx(peak, rel=0.02)


def test_derivatives_of_derivatives_are_recorded_forward_over_backward() -> None:
    class Curvature(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return vmap(hessian(lambda point: self.net(point).squeeze(-1)))(x).diagonal(dim1=-1, dim2=-2).sum(-1)

    graph = capture(Curvature, lambda: torch.zeros(32, 3))
    assert graph.num_parameters == 3 * 16 + 16 + 16 + 1
    assert graph.role_bytes("gradient") > 0
