"""Runs whole short jobs on the test-bed, start-up included, and keeps their wall times in benchmarks/jobs.json.

As root, about ten minutes: python benchmarks/jobs.py. `python -m research.papers` compares them with forecasts.
The script is also what each rank runs: python benchmarks/jobs.py --train NAME BATCH STEPS (under torchrun).
"""

import json
import sys
import time
from pathlib import Path

from traincast.profile import SETTINGS

OUT = Path(__file__).with_suffix(".json")
JOBS: tuple[tuple[str, int, str, int], ...] = (
    ("resnet(depth=2,width=16)", 16, "2x1gbit", 60),
    ("gpt(depth=2,width=64,length=64)", 16, "4xmixed", 60),
    ("vit(depth=4,width=48,patch=4)", 16, "2x100mbit", 60),
    ("vgg(depth=3,width=16,size=32)", 16, "3x1gbit", 60),
    ("bert(depth=2,width=128,length=64)", 16, "2xmixed", 50),
    ("mobilenet(depth=5,width=16,expand=4)", 16, "4x1gbit", 60),
    ("densenet(depth=4,growth=16)", 16, "2x1gbit", 60),
    ("mixer(depth=4,width=48)", 16, "4xmixed", 80),
    ("lstm(layers=2,width=128,length=16)", 16, "2x10gbit", 80),
    ("convnext(depth=2,width=24)", 16, "2xmixed", 60),
    ("unet(depth=3,width=16)", 16, "3x100mbit", 60),
    ("random(seed=5)", 16, "4xmixed", 100),
)
"""Architecture, batch of a rank, setting and number of steps: homogeneous networks and unequal ones in turn."""


def train(name: str, batch: int, num_steps: int) -> None:
    import torch
    import torch.distributed as dist

    from traincast.profile import fix_malloc, prepare_parallel_step
    from traincast.spec import Experiment

    torch.set_num_threads(1)
    fix_malloc()
    dist.init_process_group("gloo")
    run = prepare_parallel_step(Experiment(subject="step", name=name, attrs={"batch": batch, "strategy": "ddp"}))
    for _ in range(num_steps):
        run()
    dist.destroy_process_group()


def measure(name: str, batch: int, setting: str, num_steps: int, *, port: int) -> dict[str, object]:
    from traincast.profile import EmulatedCluster, emulated, run_torchrun

    nodes = next(known.nodes for known in SETTINGS if known.name == setting)
    with emulated(EmulatedCluster(name=f"job{port % 1000}", nodes=nodes)) as cluster:
        began = time.monotonic()
        code = run_torchrun(
            cluster, [str(Path(__file__)), "--train", name, str(batch), str(num_steps)], port=port, timeout_s=240.0
        )
        took_s = time.monotonic() - began
    if code:
        raise SystemExit(f"{name} in {setting} ended with exit code {code}")
    return {"name": name, "batch": batch, "setting": setting, "num_steps": num_steps, "wall_s": round(took_s, 3)}


def main() -> None:
    found = json.loads(OUT.read_text()) if OUT.exists() else []
    done = {(job["name"], job["setting"]) for job in found}
    for number, (name, batch, setting, num_steps) in enumerate(JOBS):
        if (name, setting) in done:
            continue
        found.append(measure(name, batch, setting, num_steps, port=29_700 + number))
        print(json.dumps(found[-1]), flush=True)
        OUT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
