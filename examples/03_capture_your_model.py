"""Any nn.Module in, a graph out: the whole training step is recorded without allocating its weights. Needs traincast[torch]."""

import torch

from traincast import Job, capture, catalog, forecast


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(8)
        )
        self.head = torch.nn.Linear(64 * 64, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images).flatten(1))


graph = capture(Net(), (torch.randn(64, 3, 224, 224),), name="my net", optimizer="adamw")
print(f"{len(graph.ops)} ops, {graph.num_parameters:,} parameters, {graph.flop / 1e9:.1f} GFLOP per step")
for device in ("t4", "v100", "a100-80g", "h100"):
    answer = forecast(Job(graph=graph), catalog.cluster(device=device, nodes=1, devices_per_node=1))
    print(f"{device:9s} {answer.step.seconds * 1e3:7.2f} ms per step, limited by {answer.step.limit}")
