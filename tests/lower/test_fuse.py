from dataclasses import replace

from builders import make_cluster, make_matmul, make_mlp
from traincast.catalog import workload
from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.transformer import TransformerShape, build_transformer
from traincast.cost._pricing import Pricing
from traincast.cost._roofline import Roofline
from traincast.forecast import forecast
from traincast.lower import lower
from traincast.lower._fuse import choose_kept, fuse, leave_eager, mark_autotuned
from traincast.simulate import replay_memory
from traincast.simulate._memory import replay_pass
from traincast.spec import DYNAMIC, Graph, Job, Op, Parallelism, Repeat, Stage, Tensor

SHAPE = TransformerShape(n_layers=4, hidden=256, heads=4, vocab=1000, seq=128, dropout=0.1, activation="gelu_new")


def gpt(*, mask: str = "add", mode: str = "training_step", seq: int = 128):
    shape = replace(SHAPE, mask=mask, seq=seq)
    return build_transformer(shape, Recipe(precision="fp32", attention="eager", mode=mode), batch=4)


def moved(program) -> float:
    stage = program.stages[0]
    return sum(t.num_bytes * n for t, n in zip(stage.tasks, stage.counts(), strict=True) if isinstance(t, Op))


def test_fusion_launches_fewer_kernels_and_moves_fewer_bytes() -> None:
    plain, fused = lower(gpt(), Parallelism()), lower(gpt(), Parallelism(), compiled=True)
    assert len(fused.stages[0].tasks) < 0.7 * len(plain.stages[0].tasks)
    assert moved(fused) < 0.9 * moved(plain)


def test_what_depends_on_the_data_is_not_fused() -> None:
    graph = workload("maskrcnn", batch=2, precision="fp16-amp")
    stage = lower(graph, Parallelism(), compiled=True).stages[0]
    dynamic = [task.name for task in stage.tasks if isinstance(task, Op) and task.attrs.get(DYNAMIC)]
    assert {"decode_boxes", "aten.topk", "nms0", "match_targets"} <= set(dynamic)


def test_what_ends_a_repeated_layer_is_fused_too() -> None:
    """Every norm, activation and sum of a residual network stands in a generated kernel, in all repetitions of its blocks."""
    graph = workload("resnet50", batch=2, precision="bf16-amp")
    stage = lower(graph, Parallelism(), compiled=True).stages[0]
    left = [t.name for t in stage.tasks if isinstance(t, Op) and t.kind == "norm" and "compiled" not in t.attrs]
    assert left == []


def test_fusion_leaves_products_and_their_flop_alone() -> None:
    def products(compiled: bool) -> list[tuple[str, float | None]]:
        stage = lower(gpt(mask="where"), Parallelism(), compiled=compiled).stages[0]
        return [(t.name, t.flop) for t in stage.tasks if isinstance(t, Op) and t.kind in ("matmul", "attention")]

    assert products(True) == products(False)


def test_every_tensor_that_is_read_is_still_written() -> None:
    plain, fused = (lower(gpt(), Parallelism(), compiled=flag).stages[0] for flag in (False, True))
    made_before = {t for task in plain.tasks if isinstance(task, Op) for t in task.writes}
    made = {t for task in fused.tasks if isinstance(task, Op) for t in task.writes}
    read = {t for task in fused.tasks if isinstance(task, Op) for t in task.reads}
    assert (read & made_before) <= made


def test_fusion_never_needs_more_memory() -> None:
    plain, fused = (lower(gpt(), Parallelism(), compiled=flag).stages[0] for flag in (False, True))
    peaks = [replay_memory(stage, capacity_bytes=1e12).peak_bytes for stage in (plain, fused)]
    assert peaks[1] <= peaks[0] * 1.001


def test_a_compiled_step_is_faster_and_a_replayed_one_does_not_wait_for_the_host() -> None:
    def run(**flags: bool) -> float:
        return forecast(Job(graph=gpt(), **flags), make_cluster(), costs=Pricing(ops=Roofline())).step.seconds

    assert run(compiled=True) < run()
    assert run(cuda_graphs=True) < run()
    host = forecast(Job(graph=make_mlp(width=16), cuda_graphs=True), make_cluster(), costs=Pricing(ops=Roofline()))
    assert host.timeline.shares["host"] < 1e-9


def attentions(**options: str) -> list[Op]:
    stage = lower(gpt(**options), Parallelism(), compiled=True).stages[0]
    return [task for task in stage.tasks if isinstance(task, Op) and task.kind == "attention"]


def test_attention_written_out_becomes_one_kernel_each_way() -> None:
    forward, backward = attentions()
    assert (forward.phase, backward.phase) == ("forward", "backward")
    assert forward.flop == 4 * 4 * 4 * 128 * 128 * 64
    assert backward.flop == 2.5 * forward.flop
    assert len(attentions(mode="inference")) == 1


def test_a_mask_the_compiler_does_not_know_keeps_attention_written_out() -> None:
    assert attentions(mask="where") == []


def test_fused_attention_no_longer_keeps_its_scores() -> None:
    long = gpt(seq=1024)
    plain, fused = (lower(long, Parallelism(), compiled=flag).stages[0] for flag in (False, True))
    peaks = [replay_memory(stage, capacity_bytes=1e12).by_role["activation"] for stage in (plain, fused)]
    assert peaks[1] < 0.7 * peaks[0]


def read_too_early(stage) -> set[int]:
    """Tensors that an op reads before any op of the stage has written them: inputs, weights, what repetitions carry."""
    early: set[int] = set()
    written: set[int] = set()
    for task in stage.tasks:
        if isinstance(task, Op):
            early.update(tensor for tensor in task.reads if tensor not in written)
            written.update(task.writes)
    return early


def test_no_group_runs_after_an_op_that_reads_it() -> None:
    plain, fused = (lower(gpt(), Parallelism(), compiled=flag).stages[0] for flag in (False, True))
    assert read_too_early(fused) <= read_too_early(plain)


def test_a_compiled_loss_keeps_no_copy_of_the_logits_in_fp32() -> None:
    shape = replace(SHAPE, vocab=32_000, dropout=0.0)
    graph = build_transformer(shape, Recipe(precision="bf16", attention="flash"), batch=8)
    plain, fused = (lower(graph, Parallelism(), compiled=flag).stages[0] for flag in (False, True))
    peaks = [replay_memory(stage, capacity_bytes=1e12).peak_bytes for stage in (plain, fused)]
    assert peaks[1] < 0.85 * peaks[0]


def test_a_loss_that_is_left_out_of_compilation_keeps_its_three_copies_of_the_scores() -> None:
    shape = replace(SHAPE, vocab=50_000)
    graph = build_transformer(shape, Recipe(precision="bf16"), batch=4)
    scores = 4 * shape.seq * shape.vocab

    def peak(one: Graph, *, compiled: bool) -> float:
        stage = lower(one, Parallelism(), compiled=compiled).stages[0]
        return replay_memory(stage, capacity_bytes=1e12).peak_bytes

    eager, whole = peak(graph, compiled=False), peak(graph, compiled=True)
    layers = peak(leave_eager(graph, "loss"), compiled=True)
    assert whole + 4 * scores < layers <= eager


def make_conv(channels: int, *, groups: int = 1, kernel: str = "3x3", phase: str = "forward") -> Op:
    attrs: dict[str, int | str | bool] = {
        "batch": 8, "in_channels": channels, "out_channels": channels, "groups": groups, "in_size": "14x14",
        "out_size": "14x14", "kernel": kernel, "stride": "1x1", "pass": "forward",
    }  # fmt: skip
    return Op(name="conv", kind="conv", flop=1e9, bytes_read=1e6, bytes_written=1e6, phase=phase, attrs=attrs)


def test_generated_products_hand_their_results_on_in_registers() -> None:
    product = replace(make_matmul(m=64, n=64, k=64), reads=(0, 1), writes=(2,))
    curve = Op(
        name="aten.relu", kind="elementwise", flop=4096.0, bytes_read=16384.0, bytes_written=16384.0, dtype="fp32",
        reads=(2,), writes=(3,), attrs={"function": "relu", "numel": 4096, "num_inputs": 1},
    )  # fmt: skip
    tensors = tuple(
        Tensor(shape=(64, 64), dtype="fp32", role=role) for role in ("input", "parameter", "activation", "activation")
    )
    graph = Graph(name="one", ops=(product, curve), tensors=tensors, batch_size=1)

    def read(asked: Graph) -> float:
        tasks = fuse(Stage(tasks=asked.ops, tensors=asked.tensors, repeats=asked.repeats)).tasks
        return sum(task.bytes_read for task in tasks if isinstance(task, Op) and task.kind == "elementwise")

    assert read(graph) == 16384.0
    assert read(mark_autotuned(graph)) == 0.0


def test_the_first_kernel_of_a_layer_finds_what_the_layer_before_made_in_registers() -> None:
    """A sum that ends a repeated layer and the norm that begins the next are one kernel; a sum after a product is not."""

    def op(kind: str, reads: tuple[int, ...], writes: tuple[int, ...], **attrs: object) -> Op:
        return Op(name=kind, kind=kind, phase="forward", dtype="fp16", flop=1.0, bytes_read=100.0 * len(reads),
                  bytes_written=100.0, reads=reads, writes=writes, attrs=dict(attrs))  # type: ignore[arg-type]  # fmt: skip

    norm = op("norm", (0,), (1,), function="layer_norm", rows=5, cols=10)
    product = replace(make_matmul(), reads=(1,), writes=(2,))
    residual = op("elementwise", (2, 0), (0,), function="add", numel=50, num_inputs=2)
    tensors = tuple(Tensor(shape=(5, 10), dtype="fp16", role="activation") for _ in range(3))
    stage = Stage(tasks=(norm, product, residual), tensors=tensors, repeats=(Repeat(start=0, stop=3, count=4),))
    first, _, last = fuse(stage).tasks
    assert isinstance(first, Op)
    assert isinstance(last, Op)
    assert first.bytes_read == 0.0
    assert last.bytes_read > 0.0


def test_products_of_odd_widths_may_be_padded_where_they_are_compiled() -> None:
    graph = build_transformer(replace(SHAPE, vocab=1001), Recipe(precision="bf16"), batch=4)

    def padded(graph: Graph, *, compiled: bool) -> set[str]:
        stage = lower(graph, Parallelism(), compiled=compiled).stages[0]
        return {t.layer for t in stage.tasks if isinstance(t, Op) and t.attrs.get("pads")}

    assert padded(graph, compiled=False) == set()
    assert padded(graph, compiled=True) == {"head.decoder"}
    assert padded(leave_eager(graph, "head"), compiled=True) == set()


def test_a_compiler_that_chooses_what_is_kept_keeps_half_precision_where_kernels_made_it_wide() -> None:
    """Under autocast the powers of gpt2's activation function run in fp32; what they are made of is kept and not they."""
    graph = workload("gpt2", batch=8, seq=1024, precision="bf16-amp")

    def kept(one: Graph) -> float:
        (stage,) = lower(one, Parallelism(), compiled=True).stages
        return replay_pass(stage, accumulates=False).stash_bytes

    powers = 12 * 8 * 1024 * 3072
    assert kept(graph) - kept(choose_kept(graph)) >= 6 * powers


def test_a_compiled_loss_never_writes_the_logarithms_of_all_scores() -> None:
    graph = workload("gpt2", batch=8, seq=1024, precision="bf16-amp")
    scores = 8 * 1024 * 50_257

    def written(one: Graph) -> float:
        (stage,) = lower(one, Parallelism(), compiled=True).stages
        return sum(task.bytes_written for task in stage.tasks if isinstance(task, Op) and task.layer == "loss")

    # The gradient of the scores in bf16 is all that is left.
    assert written(choose_kept(graph)) < 2.01 * scores < 6 * scores <= written(graph)
    assert choose_kept(leave_eager(graph, "loss")).ops == leave_eager(graph, "loss").ops
