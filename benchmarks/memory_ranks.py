"""Memory of real ranks beside the replay: DDP, ZeRO 1 and FSDP2 train a small Llama on gloo ranks of this machine.

python benchmarks/memory_ranks.py [ddp] [zero1] [fsdp2] [--ranks 4]

Weights and optimizer state are those that each rank holds; the peak is the highest sum of what torch's CPU allocator handed out
in a third step, with what the steps before left (DDP keeps its buckets).
"""

import argparse
import gc
import sys
import tempfile
from pathlib import Path
from typing import Any

VOCAB, BATCH, LENGTH = 4096, 4, 64


def build() -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers as hf

    torch.manual_seed(0)
    config = hf.LlamaConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, vocab_size=VOCAB, intermediate_size=1024, use_cache=False
    )  # fmt: skip
    ids = torch.randint(0, VOCAB, (BATCH, LENGTH))
    return hf.LlamaForCausalLM(config), {"input_ids": ids, "labels": ids.clone()}


def train(rank: int, how: str, ranks: int, meeting: str, found: Any) -> None:
    """One rank: three steps, the last of them watched."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.profiler import ProfilerActivity, profile

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    model, inputs = build()
    runs = model.train()
    if how == "fsdp2":
        mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        runs = torch.nn.parallel.DistributedDataParallel(model)
    weights = list(model.parameters())
    zero = ZeroRedundancyOptimizer(weights, optimizer_class=torch.optim.AdamW) if how == "zero1" else None
    optimizer = zero or torch.optim.AdamW(weights, fused=True)

    def step() -> None:
        runs(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def size(tensors: list[Any]) -> int:
        own = [(t.to_local() if hasattr(t, "to_local") else t).untyped_storage() for t in tensors]
        return sum({storage.data_ptr(): storage.nbytes() for storage in own}.values())

    step()
    step()
    gc.collect()
    slots = (zero.optim if zero is not None else optimizer).state.values()
    state = [value for slot in slots for value in slot.values() if isinstance(value, torch.Tensor)]
    kept = size([*weights, *state, *model.buffers(), *inputs.values()]) + (0 if how == "fsdp2" else size(weights))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        step()
    level = highest = 0
    events = [event for event in recording.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        level += event.nbytes()
        highest = max(highest, level)
    found[rank] = size(weights), size(state), kept + highest
    dist.destroy_process_group()


def main() -> None:
    from torch.multiprocessing import Manager, spawn

    from traincast.capture import capture
    from traincast.lower import lower
    from traincast.simulate import replay_memory
    from traincast.spec import Parallelism

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", default=["ddp", "zero1", "fsdp2"])
    parser.add_argument("--ranks", type=int, default=4)
    options = parser.parse_args()
    model, inputs = build()
    graph = capture(
        model, inputs, optimizer="adamw", implementation="fused", batch_size=BATCH, holds_output=False
    )  # fmt: skip
    print("MiB per rank, measured / replayed")
    for how in options.ways:
        with tempfile.TemporaryDirectory() as folder:
            found = Manager().dict()
            spawn(train, args=(how, options.ranks, str(Path(folder) / "meeting"), found), nprocs=options.ranks)
        plan = Parallelism(data=options.ranks, zero={"ddp": 0, "zero1": 1, "fsdp2": 3}[how])
        stage = lower(graph, plan).stages[0]
        peak = replay_memory(
            stage, capacity_bytes=1e12, bucket_copies=plan.copies_gradients, replicated=True
        ).peak_bytes
        roles = [
            sum(tensor.num_bytes * tensor.copies for tensor in stage.tensors if tensor.role == role)
            for role in ("parameter", "optimizer_state")
        ]
        measured = [max(values) for values in zip(*found.values(), strict=True)]
        told = [f"{a / 2**20:.2f} / {b / 2**20:.2f}" for a, b in zip(measured, [*roles, peak], strict=True)]
        print(f"{how:6} weights {told[0]}, state {told[1]}, peak {told[2]} ({peak / measured[2] - 1:+.1%})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
