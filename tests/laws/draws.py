"""Random jobs for the laws of conservation: small models of every family and plans that are legal for them."""

import math
from dataclasses import dataclass
from functools import cache, cached_property

from hypothesis import strategies as st

from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.transformer import TransformerShape, build_transformer
from traincast.catalog._workloads import workload
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
    """Any model under any plan that it and `Parallelism` allow, made so that none is refused; `fixed` are words of the plan, or
    what they are drawn from."""

    def choose(name: str, usual: object) -> object:
        value = fixed.get(name, usual)
        return draw(value) if isinstance(value, st.SearchStrategy) else value

    def degree(name: str, usual: object) -> int:
        value = choose(name, usual)
        return value if isinstance(value, int) else 1

    family = draw(st.sampled_from(families))
    precision = draw(st.sampled_from(fixed.get("precision", ("bf16", "bf16-pure", "fp32", "bf16-amp"))))  # type: ignore[arg-type]
    sometimes = draw(st.integers(0, 3)) == 0
    served = st.integers(1, 4) if family in ("dense", "vision") and sometimes else 0
    servers = degree("servers", served)
    if servers:
        plan = Parallelism(
            data=degree("data", degrees(16)), servers=servers, asynchronous=bool(choose("asynchronous", st.booleans()))
        )
        return Draw(family=family, precision=precision, plan=plan)
    decoder = family not in OTHERS
    context = degree("context", degrees(4) if decoder else 1)
    swapped = choose("context_method", st.sampled_from(["ring", "ulysses"])) == "ulysses"
    # Ulysses deals the heads of a tensor rank to the context ranks.
    tensor = degree("tensor", degrees(HEADS // context if swapped else HEADS) if decoder else 1)
    tensor = min(tensor, HEADS // context) if swapped else tensor
    expert = degree("expert", degrees(8)) if family == "moe" else 1
    data = degree("data", degrees(16, least=max(1, expert // context)))
    pipeline = degree("pipeline", degrees(LAYERS) if decoder else degrees(2) if family == "encoder-decoder" else 1)
    several = 1 < pipeline <= LAYERS // 2
    zero = degree("zero", st.integers(0, 3))
    sharded = draw(st.booleans()) and zero and expert == 1
    sequence = bool(choose("sequence_parallel", st.booleans()))
    words: dict[str, object] = {
        "data": data, "tensor": tensor, "pipeline": pipeline, "context": context, "expert": expert, "zero": zero,
        "context_method": "ulysses" if swapped else "ring",
        "micro_batches": choose("micro_batches", st.sampled_from([1, 4, 8])),
        "recompute": choose("recompute", st.sampled_from(["none", "selective", "full", "selective-op"])),
        "sequence_parallel": sequence,
        "gather_ahead": choose("gather_ahead", st.booleans()),
        "overlap": choose("overlap", st.booleans()),
        "reduce_dtype": choose("reduce_dtype", st.sampled_from([None, "fp32", "bf16"])),
        "expert_tensor": choose("expert_tensor", st.sampled_from([None, 1]) if family == "moe" and sequence else None),
        "dispatch_once": choose("dispatch_once", st.booleans() if family == "moe" else False),
        "virtual_stages": choose("virtual_stages", degrees(2) if several else 1),
        "shard": choose("shard", degrees(min(8, data * context)) if sharded else None),
    }  # fmt: skip
    for name in ("offload_optimizer", "offload_weights", "offload_activations"):
        words[name] = choose(name, st.booleans() if sometimes else False)
    return Draw(family=family, precision=precision, plan=Parallelism(**words))  # type: ignore[arg-type]


def count_flop(
    stage_or_graph: object, *, phases: tuple[str, ...], kinds: tuple[str, ...] = ("matmul", "attention")
) -> float:
    tasks = stage_or_graph.ops if isinstance(stage_or_graph, Graph) else stage_or_graph.tasks  # type: ignore[attr-defined]
    return sum(
        (task.flop or 0.0) * count
        for task, count in zip(tasks, stage_or_graph.counts(), strict=True)  # type: ignore[attr-defined]
        if isinstance(task, Op) and task.phase in phases and task.kind in kinds
    )
