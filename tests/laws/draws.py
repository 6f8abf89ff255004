"""Random jobs for the laws of conservation: small models of every family and plans that are legal for them."""

import math
from dataclasses import dataclass
from functools import cache, cached_property

from hypothesis import assume
from hypothesis import strategies as st

from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.transformer import TransformerShape, build_transformer
from traincast.catalog._workloads import workload
from traincast.errors import IllegalPlan
from traincast.lower import lower
from traincast.spec import Graph, Op, Parallelism, Program

DECODERS = ("dense", "grouped", "tied", "moe", "adapters")
TUNED = {"adapters": {}, "qlora": {"frozen_dtype": "nf4-dq"}, "dora": {"adapter_norm": True}}
OTHERS = ("encoder-decoder", "vision", "recommender")
FAMILIES = (*DECODERS, "qlora", "dora", *OTHERS)
LAYERS = 8
HEADS = 8


@cache
def build(family: str, precision: str = "bf16") -> Graph:
    """One training step of a small model; `grouped`: fewer heads of keys and values; `adapters`, `qlora`, `dora`: small matrices
    over frozen weights."""
    if family == "encoder-decoder":
        return workload("t5-small", batch=2, precision=precision)
    if family == "vision":
        return workload("resnet50", batch=4, precision=precision)
    if family == "recommender":
        return workload("dlrm", batch=64, precision="fp32")
    shape = TransformerShape(
        n_layers=LAYERS, hidden=512, heads=HEADS, kv_heads=2 if family == "grouped" else 0, vocab=32_000, seq=256,
        gated=True, tied=family == "tied", experts=8 if family == "moe" else 0,
        experts_per_token=2 if family == "moe" else 0, moe_ffn=1024 if family == "moe" else 0,
    )  # fmt: skip
    tuned = {"adapter_rank": 8, **TUNED[family]} if family in TUNED else {}
    recipe = Recipe(precision=precision, implementation="fused", **tuned)  # type: ignore[arg-type]
    return build_transformer(shape, recipe, batch=2)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A model, a plan that can run it, and what each rank then runs."""

    family: str
    precision: str
    plan: Parallelism

    def __str__(self) -> str:
        usual = Parallelism()
        words = {name: getattr(self.plan, name) for name in Parallelism.__dataclass_fields__}
        return f"{self.family} {self.precision} { ({n: v for n, v in words.items() if v != getattr(usual, n)}) }"

    @property
    def graph(self) -> Graph:
        return build(self.family, self.precision)

    @cached_property
    def program(self) -> Program:
        return lower(self.graph, self.plan)


def degrees(most: int, *, least: int = 1) -> st.SearchStrategy[int]:
    return st.sampled_from([2**power for power in range(int(math.log2(least)), int(math.log2(most)) + 1)])


@st.composite
def draws(draw: st.DrawFn, families: tuple[str, ...] = FAMILIES, **fixed: object) -> Draw:
    """Any model under any plan that it and `Parallelism` allow; `fixed` are words of the plan, or what they are drawn from."""
    family = draw(st.sampled_from(families))
    decoder = family not in OTHERS
    words: dict[str, object] = {
        "data": draw(degrees(16)),
        "tensor": draw(degrees(8)) if decoder else 1,
        "pipeline": draw(degrees(8)) if decoder else draw(degrees(2)) if family == "encoder-decoder" else 1,
        "context": draw(degrees(4)) if decoder else 1,
        "context_method": draw(st.sampled_from(["ring", "ulysses"])),
        "zero": draw(st.integers(0, 3)),
        "micro_batches": draw(st.sampled_from([1, 4, 8])),
        "recompute": draw(st.sampled_from(["none", "selective", "full", "selective-op"])),
        "sequence_parallel": draw(st.booleans()),
        "gather_ahead": draw(st.booleans()),
        "overlap": draw(st.booleans()),
        "reduce_dtype": draw(st.sampled_from([None, "fp32", "bf16"])),
    }
    if family == "moe":
        words["expert"] = draw(degrees(8))
        words["expert_tensor"] = draw(st.sampled_from([None, 1])) if words["sequence_parallel"] else None
        words["dispatch_once"] = draw(st.booleans())
    if words["pipeline"] != 1:
        words["virtual_stages"] = draw(degrees(2))
    if draw(st.integers(0, 3)) == 0:
        away = ("offload_optimizer", "offload_weights", "offload_activations")
        words |= {name: draw(st.booleans()) for name in away}
    if draw(st.booleans()) and words["zero"]:
        words["shard"] = draw(degrees(8))
    if family in ("dense", "vision") and draw(st.integers(0, 3)) == 0:
        words = {"data": words["data"], "servers": draw(st.integers(1, 4)), "asynchronous": draw(st.booleans())}
    precision = draw(st.sampled_from(fixed.pop("precision", ("bf16", "bf16-pure", "fp32", "bf16-amp"))))  # type: ignore[arg-type]
    words |= {name: draw(value) if isinstance(value, st.SearchStrategy) else value for name, value in fixed.items()}
    try:
        found = Draw(family=family, precision=precision, plan=Parallelism(**words))  # type: ignore[arg-type]
        assume(found.program.stages)
    except IllegalPlan:
        assume(False)
        raise
    return found


def count_flop(
    stage_or_graph: object, *, phases: tuple[str, ...], kinds: tuple[str, ...] = ("matmul", "attention")
) -> float:
    tasks = stage_or_graph.ops if isinstance(stage_or_graph, Graph) else stage_or_graph.tasks  # type: ignore[attr-defined]
    return sum(
        (task.flop or 0.0) * count
        for task, count in zip(tasks, stage_or_graph.counts(), strict=True)  # type: ignore[attr-defined]
        if isinstance(task, Op) and task.phase in phases and task.kind in kinds
    )
