import pytest

from traincast.accuracy._cases import Case, parse_case
from traincast.accuracy._translate import read_question, translate
from traincast.accuracy._translate.machine import read_cluster, read_placement
from traincast.accuracy._translate.workload import read_recipe
from traincast.catalog._stacks import plain_stack
from traincast.errors import IllegalPlan, TraincastError, UnknownName
from traincast.resolve._place import read_cluster as build_place
from traincast.spec import Cluster, Parallelism


def make_case(**values: object) -> Case:
    usual: dict[str, object] = {
        "case_id": "x", "gpu": "a100-sxm4-40g", "family": "transformer-lm", "arch": "gpt2", "model": "tiny", "n_layers": 2,
        "hidden": 128, "n_heads": 4, "n_kv_heads": 4, "head_dim": 32, "ffn": 512, "vocab": 1000, "seq_len": 64,
        "mode": "training_step", "dtype": "fp32", "attention": "eager", "act_ckpt": "none", "optimizer": "adam",
        "n_gpus": 1, "n_nodes": 1, "micro_batch": 2.0, "grad_accum": 1, "global_batch": 2.0, "framework": "pytorch-2.1",
    }  # fmt: skip
    return Case(**{**usual, **values})  # type: ignore[arg-type]


def build_cluster(case: Case, said: list[str]) -> Cluster:
    cluster, assumed = build_place(read_cluster(case, said))
    said.extend(assumed)
    return cluster


def read_plan(case: Case, said: list[str]) -> Parallelism:
    asked = translate(case)
    said.extend(asked.assumptions)
    return asked.parallelism


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        ({"n_gpus": 7, "placement": "34"}, [3, 4]),
        ({"n_gpus": 1, "placement": "1"}, [1]),
        ({"n_gpus": 12, "placement": "12", "n_nodes": 2}, [6, 6]),
        ({"n_gpus": 40, "placement": "40@5", "n_nodes": 5}, [8] * 5),
        ({"n_gpus": 7, "placement": "7@2", "n_nodes": 2}, [4, 3]),
        ({"n_gpus": 16, "n_nodes": 2, "gpus_per_node": 8}, [8, 8]),
        ({"n_gpus": 12, "n_nodes": None, "gpus_per_node": 8}, [6, 6]),
        ({"n_gpus": 4, "n_nodes": None, "placement": "unconsolidated"}, [1, 1, 1, 1]),
        ({"n_gpus": 4, "n_nodes": None, "placement": "consolidated"}, [4]),
    ],
)
def test_a_placement_says_how_many_devices_each_node_uses(values: dict[str, object], counts: list[int]) -> None:
    assert read_placement(make_case(**values), []) == counts


def test_a_device_of_unknown_memory_has_the_most_that_is_sold() -> None:
    assumptions: list[str] = []
    group = build_cluster(make_case(gpu="a100-sxm4"), assumptions).groups[0]
    assert group.device.memory_bytes > 80e9
    assert any("does not say its memory" in text for text in assumptions)


def test_an_uneven_placement_becomes_unequal_groups_of_nodes() -> None:
    cluster = build_cluster(make_case(n_gpus=7, n_nodes=3, placement="331"), [])
    assert [(group.num_nodes, group.devices_per_node) for group in cluster.groups] == [(2, 3), (1, 1)]
    assert cluster.num_devices == 7


def test_links_are_bytes_per_second_of_one_device_and_of_one_node() -> None:
    group = build_cluster(make_case(n_gpus=8, n_nodes=2, intra_bw_GBps=12.0, inter_bw_Gbps=50.0), []).groups[0]
    assert group.intra.bytes_per_s == 12e9
    assert group.inter.bytes_per_s == 50e9 / 8


def test_an_unknown_network_is_assumed_out_loud_and_only_where_it_matters() -> None:
    said: list[str] = []
    build_cluster(make_case(n_gpus=16, n_nodes=2, intra_bw_GBps=300.0), said)
    assert any("network is not known" in line for line in said)
    quiet: list[str] = []
    build_cluster(make_case(n_gpus=8, n_nodes=1, intra_bw_GBps=300.0), quiet)
    assert quiet == []


def test_the_trays_of_a_rack_share_nvlink() -> None:
    case = make_case(gpu="gb200-186g", n_gpus=256, n_nodes=64, gpus_per_node=4, intra_bw_GBps=900.0)
    group = build_cluster(case, []).groups[0]
    assert group.devices_per_node == 4
    assert [domain.num_devices for domain in group.domains] == [72]


@pytest.mark.parametrize(
    "values", [{"gpu": "warp-9"}, {"intra_bw_GBps": 0.0}, {"n_gpus": 2, "n_nodes": 0, "inter_bw_Gbps": 1.0}]
)
def test_hardware_that_cannot_be_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(TraincastError):
        build_cluster(make_case(**values), [])


def test_every_degree_reaches_the_plan() -> None:
    case = make_case(
        n_gpus=64, n_nodes=8, dp=2, tp=4, pp=4, cp=2, ep=4, vp=2, zero=1, grad_accum=16, framework="Megatron-Core"
    )
    plan = read_plan(case, [])
    assert plan == Parallelism(
        data=2, tensor=4, pipeline=4, context=2, expert=4, virtual_stages=2, micro_batches=16, zero=1,
        sequence_parallel=True, order="interleaved", bucket_copies=False, dispatch_once=True, async_tensor=True,
        gather_ahead=True, reduce_dtype="bf16", bucket_bytes=80e6, async_context=True,
    )  # fmt: skip


def test_more_ranks_for_experts_than_replicas_fold_them_over_the_tensor_axis() -> None:
    said: list[str] = []
    moe = {"n_layers": 8, "n_experts": 32, "experts_per_token": 2, "moe_ffn": 256, "arch": "mixtral", "grad_accum": 8}
    plan = read_plan(make_case(n_gpus=256, n_nodes=32, dp=16, tp=2, pp=8, ep=32, **moe), said)
    assert (plan.expert, plan.expert_tensor) == (32, 1)
    assert any("ep = 32" in line for line in said)


def test_a_missing_data_degree_takes_all_that_is_left() -> None:
    assert read_plan(make_case(n_gpus=8, tp=2), []).data == 4


@pytest.mark.parametrize(
    "values",
    [
        {"n_gpus": 3, "tp": 2},
        {"n_gpus": 8, "dp": 4, "tp": 4},
        {"grad_accum": 0},
        {"n_gpus": 0, "dp": 0},
        {"grad_accum": None, "global_batch": 5.0},
        {"n_gpus": 2, "dp": 2, "ep": 4},
    ],
)
def test_a_plan_that_does_not_add_up_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(TraincastError):
        read_plan(make_case(**values), [])


def test_nanotron_refuses_fewer_passes_than_fill_its_pipeline() -> None:
    values = {"framework": "nanotron", "n_gpus": 4, "pp": 4}
    assert read_plan(make_case(**values, grad_accum=3), []).micro_batches == 3
    with pytest.raises(IllegalPlan, match="asks for 3 or more"):
        read_plan(make_case(**values, grad_accum=2), [])
    assert read_plan(make_case(**{**values, "framework": "Megatron-LM"}, grad_accum=2), []).micro_batches == 2


@pytest.mark.parametrize(
    ("columns", "batch", "passes"),
    [
        ({"micro_batch": 2.0, "global_batch": None}, 2, 16),
        ({"micro_batch": None, "global_batch": 32.0}, 1, 16),
        ({"micro_batch": 2.0, "global_batch": 64.0}, 2, 16),
    ],
)
def test_a_pipeline_without_a_number_of_micro_batches_is_not_one_pass(
    columns: dict[str, float | None], batch: int, passes: int
) -> None:
    asked = translate(make_case(n_gpus=8, n_layers=4, pp=4, dp=2, grad_accum=None, **columns))
    assert (asked.job.graph.batch_size, asked.parallelism.micro_batches) == (batch, passes)
    assert not any("one pass" in sentence for sentence in asked.assumptions)


def test_passes_follow_from_the_batches_where_they_are_not_stated() -> None:
    assert (
        read_plan(make_case(n_gpus=4, dp=4, grad_accum=None, micro_batch=2.0, global_batch=64.0), []).micro_batches == 8
    )


@pytest.mark.parametrize(
    ("values", "precision"),
    [
        ({"dtype": "fp32"}, "fp32"),
        ({"dtype": "tf32"}, "tf32"),
        ({"dtype": "fp32", "undetermined": "tf32 probably on (pytorch<1.12 default)"}, "tf32"),
        ({"dtype": "fp32", "undetermined": "tf32 probably on (pytorch<1.12 default)", "gpu": "v100-sxm2-16g"}, "fp32"),
        ({"dtype": "fp16_amp"}, "fp16-amp"),
        ({"dtype": "mxfp8", "gpu": "b200"}, "mxfp8"),
        ({"dtype": "mxfp8"}, "bf16"),
        ({"dtype": "fp8", "extra": "float8_tensorwise;async_tp"}, "fp8"),
        ({"dtype": "fp8", "extra": "float8_rowwise;async_tp"}, "bf16"),
        ({"dtype": None}, "fp32"),
    ],
)
def test_precisions_are_read_with_their_traps(values: dict[str, object], precision: str) -> None:
    assert translate(make_case(**values)).resolved.settings["precision"] == precision


def test_an_unknown_precision_is_named() -> None:
    with pytest.raises(UnknownName, match="posit8"):
        translate(make_case(dtype="posit8"))


def test_optimizer_remarks_are_cut_off_and_absent_ones_said() -> None:
    assert (
        read_recipe(make_case(optimizer="adamw(fp32 master, fp32 grad accumulation)"), plain_stack(), zero=0, said=[])[
            "optimizer"
        ]
        == "adamw"
    )
    assert read_recipe(make_case(mode="inference"), plain_stack(), zero=0, said=[])["optimizer"] == "none"
    said: list[str] = []
    read_recipe(make_case(optimizer=None), plain_stack(), zero=0, said=said)
    assert any("optimizer is not known" in line for line in said)


def test_a_question_runs_the_micro_batch_of_one_replica() -> None:
    question = translate(make_case(n_gpus=4, dp=4, micro_batch=3.0, grad_accum=2))
    assert question.job.graph.batch_size == 3
    assert question.parallelism.num_devices == question.cluster.num_devices == 4
    assert question.job.graph.mode == "training_step"


def test_what_the_source_leaves_open_is_passed_on() -> None:
    question = translate(make_case(undetermined="gpu memory size (40 or 80 GB)", gpu="a100-sxm4"))
    assert any("gpu memory size" in line for line in question.assumptions)


@pytest.mark.parametrize(
    "values",
    [
        {"arch": "perpetuum", "model": "mobile", "n_layers": None, "params": None},
        {"mode": "dream"},
        {"micro_batch": 0.0},
        {"micro_batch": None, "global_batch": None},
    ],
)
def test_jobs_that_cannot_be_posed_are_refused_with_a_reason(values: dict[str, object]) -> None:
    with pytest.raises(TraincastError):
        translate(make_case(**values))


@pytest.mark.parametrize(("strategy", "dtypes"), [("lora", {"bf16"}), ("qlora", {"bf16", "fp4"})])
def test_adapters_leave_the_model_frozen_and_say_which_rank_is_assumed(strategy: str, dtypes: set[str]) -> None:
    question = translate(make_case(strategy=strategy, dtype="bf16"))
    weights = [tensor for tensor in question.job.graph.tensors if tensor.role == "parameter"]
    trained = [tensor for tensor in question.job.graph.tensors if tensor.role == "gradient"]
    assert {tensor.dtype for tensor in weights} == dtypes
    assert sum(t.numel * t.copies for t in trained) < 0.2 * sum(t.numel * t.copies for t in weights)
    assert any("rank of the adapters" in assumption for assumption in question.assumptions)


def test_nanotron_counts_memory_in_binary_units() -> None:
    assert translate(make_case(framework="nanotron")).logs.memory_unit == pytest.approx(1.0737, abs=1e-4)
    assert translate(make_case()).logs.memory_unit == 1.0


def test_litgpt_shards_its_full_recipes_and_runs_their_blocks_again() -> None:
    values = {
        "framework": "LitGPT",
        "dtype": "bf16",
        "n_gpus": 4,
        "gpu": "a10g",
        "global_batch": 8.0,
        "optimizer": "adamw",
    }
    sharded = translate(make_case(**values, strategy="fsdp-full"))
    adapted = translate(make_case(**values, strategy="fsdp-lora"))
    assert (sharded.parallelism.zero, sharded.parallelism.recompute) == (3, "full")
    assert (adapted.parallelism.zero, adapted.parallelism.recompute) == (0, "none")
    assert any("where weights are sharded" in text for text in sharded.assumptions)
    assert not sharded.logs.counts_reserved
    assert translate(make_case(framework="nanotron", dtype="bf16")).logs.counts_reserved


def test_a_source_that_read_the_devices_meter_is_compared_with_all_that_the_device_gave_away() -> None:
    metered = translate(make_case(framework="nvidia-dle-pytorch(lambda)"))
    assert metered.counts_device
    assert not translate(make_case(framework="nvidia-dle-pytorch")).counts_device


def test_the_state_of_a_recipe_that_exceeds_its_device_is_taken_off_it() -> None:
    large = {"n_layers": 32, "hidden": 4096, "n_heads": 32, "n_kv_heads": 32, "head_dim": 128, "ffn": 11008}
    values = {
        "framework": "LitGPT",
        "dtype": "bf16",
        "gpu": "a10g",
        "optimizer": "adamw",
        "strategy": "full",
        "arch": "llama",
    }
    assert translate(make_case(**values, **large)).parallelism.offload_optimizer
    assert not translate(make_case(**values)).parallelism.offload_optimizer
    assert not translate(make_case(**{**values, "framework": "torchtune"}, **large)).parallelism.offload_optimizer


@pytest.mark.parametrize(("micro_batch", "fused"), [(1.0, False), (2.0, True), (4.0, True)])
def test_megatrons_softmax_is_one_kernel_only_for_whole_fours_of_samples_and_heads(
    micro_batch: float, fused: bool
) -> None:
    case = make_case(
        framework="Megatron-DeepSpeed",
        dtype="fp16",
        n_gpus=2,
        tp=2,
        dp=1,
        micro_batch=micro_batch,
        global_batch=micro_batch,
    )
    kinds = [op.name for op in translate(case).job.graph.ops if "softmax" in op.name and "log" not in op.name]
    assert all(target.startswith("megatron.") == fused for target in kinds)
    assert kinds


def test_torchtitan_keeps_weights_gathered_in_a_pipeline() -> None:
    columns = {"framework": "torchtitan", "strategy": "fsdp+3d", "zero": 3, "n_gpus": 8, "grad_accum": 4}
    piped = translate(make_case(**columns, dp=4, pp=2))
    assert piped.parallelism.zero == 2
    assert any("keeps weights gathered" in line for line in piped.assumptions)
    assert translate(make_case(**columns, dp=8, pp=1)).parallelism.zero == 3


def test_hybrid_sharding_cuts_inside_a_node() -> None:
    columns = {"strategy": "hsdp", "zero": 3, "n_gpus": 32, "dp": 32, "n_nodes": 4, "gpus_per_node": 8}
    assert translate(make_case(**columns)).parallelism.shard == 8
    assert translate(make_case(**{**columns, "strategy": "fsdp-full"})).parallelism.shard is None


def test_without_a_number_of_devices_nodes_or_plan_say_it() -> None:
    by_nodes = translate(make_case(n_gpus=None, dp=None, n_nodes=2, gpus_per_node=8))
    by_plan = translate(make_case(n_gpus=None, dp=4, tp=2, n_nodes=None, gpus_per_node=None))
    assert (by_nodes.cluster.num_devices, by_plan.cluster.num_devices) == (16, 8)
    assert any("number of devices is not known" in line for line in by_nodes.assumptions)


def test_a_recipe_that_only_serves_has_no_optimizer_to_move() -> None:
    question = translate(
        make_case(framework="LitGPT", mode="inference", gpu="rtx-3060", model="llama-2-70b", n_layers=None)
    )
    assert not question.parallelism.offload_optimizer


def test_a_column_named_as_a_field_of_a_question_is_asked() -> None:
    row = {"case_id": "rl", "gpu": "h100-80g", "model": "gpt2", "dtype": "bf16", "micro_batch": 8}
    found = translate(parse_case({**row, "regime": "grpo", "group_size": "4", "offload_weights": True, "critic": None}))
    assert found.question.job["regime"] == "grpo"
    assert found.question.job["group_size"] == 4
    assert "critic" not in found.question.job
    assert found.question.parallelism["offload_weights"] is True
    assert found.resolved.job.regime is not None


@pytest.mark.parametrize(
    ("framework", "extra", "spelling"),
    [
        ("Megatron-Core", "sft;26.02.01", "megatron-core@26.02"),
        ("nvidia-dle-pytorch(lambda)", "v1", "nvidia-dle-pytorch@1"),
        ("torchtitan v0.2.0", "async_tp", "torchtitan@0.2"),
        ("nanotron", "r16", "nanotron"),
    ],
)
def test_a_version_stands_behind_the_framework_or_among_the_settings(framework: str, extra: str, spelling: str) -> None:
    asked, _ = read_question(make_case(framework=framework, extra=extra), [])
    assert asked.job["stack"] == spelling


def test_a_row_that_says_nothing_of_recomputation_runs_as_its_software_does() -> None:
    sharded = {"framework": "torchtitan", "n_gpus": 8, "zero": 3, "dtype": "bf16", "global_batch": 16.0}
    assert read_plan(make_case(**sharded, act_ckpt=None), []).recompute == "selective-op"
    assert read_plan(make_case(**sharded, act_ckpt="none"), []).recompute == "none"
    assert read_plan(make_case(act_ckpt=None), []).recompute == "none"


def test_four_boards_of_a_row_without_nodes_share_a_machine() -> None:
    cluster = build_cluster(make_case(gpu="rtx-3090", n_gpus=4, n_nodes=None, global_batch=8.0), [])
    assert (cluster.num_nodes, cluster.devices_per_node) == (1, 4)


@pytest.mark.parametrize("extra", ["channels_last", "v1;nhwc"])
def test_a_row_of_images_with_channels_last_asks_for_them(extra: str) -> None:
    images = {"family": "cnn", "arch": "resnet50", "model": "resnet50", "input_shape": "3x224x224", "num_classes": 1000}
    asked, _ = read_question(make_case(**images, extra=extra), [])
    plain, _ = read_question(make_case(**images), [])
    assert asked.workload.channels_last
    assert not plain.workload.channels_last
