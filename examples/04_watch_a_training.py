"""A real training on this CPU: forecast before step 0, live comparison, then a slow loader. Needs traincast[torch]."""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from traincast.integrate.pytorch import watch_training

torch.manual_seed(0)
torch.set_num_threads(1)
BATCH, STEPS = 32, int(os.environ.get("STEPS", "24"))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(500, 128)
        layer = torch.nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(128, 500)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(tokens)))


def batches(*, wait_s: float) -> Iterator[torch.Tensor]:
    for _ in range(STEPS):
        time.sleep(wait_s)
        yield torch.randint(500, (BATCH, 33))


def train(store: Path, *, wait_s: float) -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    with watch_training(
        model, torch.randint(500, (BATCH, 32)), loss="cross_entropy", optimizer=optimizer, num_steps=STEPS, store=store,
        name="small transformer", check_every=STEPS // 3, say=print,
    ) as run:  # fmt: skip
        for tokens in run.batches(batches(wait_s=wait_s)):
            optimizer.zero_grad()
            scores = model(tokens[:, :-1])
            torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()
            run.step()


with tempfile.TemporaryDirectory() as folder:
    for title, wait_s in (("first run", 0.0), ("the same again, which has learned", 0.0), ("with a slow loader", 0.1)):
        print(f"--- {title}")
        train(Path(folder) / "runs.db", wait_s=wait_s)
