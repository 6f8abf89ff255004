"""Embedding tables with sparse gradients are spread over the replicas."""

import pytest

from traincast.catalog._models.layers import count_distinct
from traincast.catalog._workloads import workload
from traincast.errors import IllegalPlan, InvalidInput
from traincast.lower import lower
from traincast.lower._tables import count_hits
from traincast.spec import HOST, Collective, Graph, Op, Parallelism


@pytest.fixture(scope="module")
def recommender() -> Graph:
    return workload("dlrm", batch=256, precision="fp16-amp")


def _collectives(graph: Graph, plan: Parallelism) -> list[Collective]:
    return [task for task in lower(graph, plan).stages[0].tasks if isinstance(task, Collective)]


def test_looked_up_rows_are_exchanged_once_each_way(recommender: Graph) -> None:
    exchanged = [task for task in _collectives(recommender, Parallelism(data=8)) if task.kind == "all_to_all"]
    assert [task.phase for task in exchanged] == ["forward", "backward"]
    # 256 samples x 18 tables with more rows than that x 128 numbers, which leave the tables in half precision.
    assert exchanged[0].num_bytes == pytest.approx(256 * 18 * 128 * 2)


def test_only_small_tables_are_reduced_and_only_the_others_exchanged(recommender: Graph) -> None:
    reduced = sum(
        task.num_bytes for task in _collectives(recommender, Parallelism(data=8)) if task.kind == "all_reduce"
    )
    dense = sum(t.num_bytes for t in recommender.tensors if t.role == "parameter" and "tables" not in t.name)
    small = 3 + 63 + 10 + 155 + 4 + 14 + 108 + 36
    assert reduced == pytest.approx(dense + small * 128 * 4)


def test_lookups_reach_no_more_rows_than_a_table_has() -> None:
    assert count_distinct([3, 1000], 1e9) == pytest.approx(1003)
    assert count_distinct([10**9], 1000.0) == pytest.approx(1000, rel=1e-5)


def test_rows_are_updated_where_their_gradients_are_added_up(recommender: Graph) -> None:
    update = next(op for op in recommender.ops if op.kind == "optimizer")
    table = next(op for op in recommender.ops if op.name == "fbgemm.embedding_bag_backward")
    assert update.attrs["numel"] < 3e6
    assert table.bytes_written > 0.3 * 256 * 26 * 128 * 4


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_a_table_takes_its_share_of_memory_on_each_rank(recommender: Graph, ranks: int) -> None:
    def table_bytes(plan: Parallelism) -> float:
        stage = lower(recommender, plan).stages[0]
        return sum(t.num_bytes for t in stage.tensors if t.role == "parameter" and "tables" in t.name)

    assert table_bytes(Parallelism(data=ranks)) == pytest.approx(table_bytes(Parallelism()) / ranks, rel=1e-6)


def test_a_dense_embedding_is_still_reduced() -> None:
    graph = workload("gpt2", batch=1, seq=128)
    kinds = {task.kind for task in _collectives(graph, Parallelism(data=4))}
    assert kinds == {"all_reduce"}


def test_features_of_a_large_graph_cross_the_link_to_the_host() -> None:
    graph = workload("rgat", batch=64)
    stage = lower(graph, Parallelism()).stages[0]
    fetched = next(task for task in stage.tasks if isinstance(task, Collective) and task.kind == "copy_in")
    rows = next(task for task in stage.tasks if isinstance(task, Op) and task.attrs.get("function") == "host_gather")
    assert fetched.num_bytes == rows.bytes_written > 0


@pytest.mark.parametrize(("how", "kinds"), [
    ("row", {"reduce_scatter", "all_gather"}), ("column", {"all_gather", "all_to_all"}), ("table", {"all_to_all"}),
    ("replicated", {"all_gather"}),
])  # fmt: skip
def test_each_way_of_spreading_tables_sends_its_own_messages(recommender: Graph, how: str, kinds: set[str]) -> None:
    plan = Parallelism(data=8, table_sharding=how)
    sent = [task for task in _collectives(recommender, plan) if task.layer == "tables" and task.kind != "all_reduce"]
    assert {task.kind for task in sent} == kinds
    vectors = 256 * 18 * 128 * 2
    if how == "row":
        # Partial sums of the samples of all eight replicas.
        assert [task.num_bytes for task in sent] == pytest.approx([8 * vectors, 8 * vectors], rel=0.05)
    if how == "table":
        # 26 tables on 8 replicas: the busiest has 4, the mean is 3.25.
        assert [task.num_bytes for task in sent] == pytest.approx([vectors * 4 / 3.25] * 2, rel=0.05)


def test_whole_tables_and_copies_take_more_memory_than_shares(recommender: Graph) -> None:
    def table_bytes(plan: Parallelism) -> float:
        stage = lower(recommender, plan).stages[0]
        return sum(t.num_bytes for t in stage.tensors if t.role == "parameter" and "tables" in t.name)

    whole = table_bytes(Parallelism())
    assert table_bytes(Parallelism(data=8, table_sharding="replicated")) == whole
    assert table_bytes(Parallelism(data=8, table_sharding="row")) == pytest.approx(whole / 8, rel=1e-6)
    assert whole / 8 < table_bytes(Parallelism(data=8, table_sharding="table")) < whole / 3


def test_rows_that_the_cache_lacks_cross_the_link_to_the_host(recommender: Graph) -> None:
    plan = Parallelism(data=8, table_cache=0.1, table_hits=0.75)
    copied = [task for task in _collectives(recommender, plan) if task.axis == HOST]
    assert [task.kind for task in copied] == ["copy_in", "copy_out"]
    assert copied[0].num_bytes == pytest.approx(0.25 * 256 * 26 * 128 * 4)
    assert count_hits(1e8, 0.1) == pytest.approx(0.875, abs=0.001)
    assert count_hits(1e8, 1.0) == 1


def test_tables_are_asked_for_where_there_are_some() -> None:
    graph = workload("gpt2", batch=1, seq=128)
    with pytest.raises(IllegalPlan, match="tables"):
        lower(graph, Parallelism(data=4, table_sharding="row"))
    with pytest.raises(IllegalPlan, match="table_cache"):
        Parallelism(table_cache=1.5)


def test_a_fused_recipe_pairs_the_vectors_in_one_kernel_each_way_and_rectifies_in_products(recommender: Graph) -> None:
    fused = workload("dlrm", batch=256, precision="fp16-amp", fused=True)
    assert fused.num_parameters == recommender.num_parameters
    pairing = [op for op in fused.ops if op.layer == "interaction"]
    assert [op.phase for op in pairing] == ["forward", "backward"]
    vectors = 256 * 27 * 128 * 2
    assert pairing[0].bytes_read == pytest.approx(vectors)
    assert pairing[1].bytes_written == pytest.approx(vectors)
    assert not [op for op in fused.ops if "relu" in op.name or "threshold" in op.name]
    assert sum(op.flop for op in fused.ops if op.kind == "matmul") < sum(
        op.flop for op in recommender.ops if op.kind == "matmul"
    )


def test_features_that_a_cache_on_the_device_holds_do_not_cross_the_link_to_the_host() -> None:
    def fetched(**said: object) -> float:
        graph = workload("rgat", batch=64, **said)
        return sum(
            task.num_bytes
            for task in lower(graph, Parallelism()).stages[0].tasks
            if isinstance(task, Collective) and task.axis == HOST
        )

    cached = fetched(feature_cache_bytes=1e9, feature_hits=0.75)
    assert cached == pytest.approx(0.25 * fetched())
    graph = workload("rgat", batch=64, feature_cache_bytes=1e9, feature_hits=0.75)
    assert sum(tensor.num_bytes for tensor in graph.tensors if tensor.role == "buffer") == pytest.approx(1e9)


def test_neighbours_are_sampled_as_asked_and_wrong_ones_are_named() -> None:
    few, many = (workload("rgat", batch=64, fan_outs=words) for words in ("5,5,5", "20,15,9"))
    assert sum(op.flop for op in few.ops) < sum(op.flop for op in many.ops)
    assert sum(op.flop for op in many.ops) == sum(op.flop for op in workload("rgat", batch=64).ops)
    for said, message in (
        ({"fan_outs": "5,5"}, "has 3 layers, so 3 numbers"), ({"fan_outs": "5,0,5"}, "from the seeds outwards"),
        ({"fan_outs": "5,many,5"}, "from the seeds outwards"), ({"distinct_neighbours": 1.5}, "between 0 and 1"),
        ({"feature_hits": 0.5}, "go together"), ({"feature_cache_bytes": 1e9}, "go together"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=message):
            workload("rgat", **said)
    with pytest.raises(InvalidInput, match="gpt2 samples no neighbours"):
        workload("gpt2", fan_outs="5,5,5")
