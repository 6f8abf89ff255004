"""Measured GPU steps to rows: the operators of each program, what physics says of them, and the seconds that were measured.

Image models of ../shared/data/timm (captured graphs) and runs of ../shared/cases. Everything is kept in a file of the temporary
folder, named after the code that made it, so that a change of the physics makes it anew.
"""

import hashlib
import importlib
import json
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import traincast
from traincast import catalog
from traincast.accuracy import hide_results, parse_case, read_rows, translate
from traincast.accuracy._cases import parse_observation
from traincast.cost import Nodes, Pricing, Roofline, describe_nodes, is_gpu
from traincast.cost._interaction.nodes import CONDITIONS, classes_of, describe_conditions
from traincast.embed import data_type, summarize
from traincast.errors import TraincastError
from traincast.forecast import Engine
from traincast.forecast._engine import Shown
from traincast.forecast._setting import SETTING, read_setting
from traincast.resources import profile_resources
from traincast.spec import RESOURCES, Cluster, Graph, Job, Op, Parallelism, Stage

# The graphs as they were run are the benchmark's: it knows which switches were on when they were measured.
image_models: Any = importlib.import_module("benchmarks.image_models")

Array = NDArray[np.float64]
Places = NDArray[np.intp]
SHARED = Path(__file__).resolve().parents[4] / "shared"
TIMM = SHARED / "data" / "timm"
CASES = ("single_gpu", "llm", "dp", "mlperf")
MOST_ROWS = 45
"""Of one source and framework of the cases, evenly over the table."""
SIMULATED = 900
"""Steps on random settings that nobody measured."""
MOST_DRAWN = 4
"""Micro-batches of a step whose spans are looked at."""
LEAST_SHARE = 1e-3
"""Operators below this share of the reference time are one node for each class in training."""
OLD, NEW = "pytorch-1", "pytorch"
"""Stacks of the image models' rows: training ran PyTorch 1.12, inference 2.4 and 2.9.1."""
SCALING = ("compute", "memory", "bubble")
"""Parts of a timeline that follow the operators; the rest stays."""
PHYSICS = ("cost", "lower", "simulate", "catalog")
NOT_PHYSICS = ("operator_classes.json", "graph.safetensors", "__init__.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program that steps were measured of, equal and small operators merged."""

    name: str
    family: str
    source: str
    behaviour: str
    classes: tuple[str, ...]
    own: Array
    around: Array
    reference_s: Array
    shares: Mapping[str, float]
    """Of classes, before anything was merged."""
    totals: Mapping[str, tuple[float, float, float]]
    """Of each kind of operators: FLOP, bytes and calls of a step. What baselines are told."""
    batch: int
    data_type: str = ""
    embedding: Array = field(default_factory=lambda: np.zeros(0))
    """Traits and vector of its summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured step, or one that was only simulated (`measured_s` is not a number)."""

    program: int
    condition: str
    seconds: Array
    """Of each node of its program, as physics says, all runs together."""
    rest_s: float
    """Of the step, what does not follow the operators."""
    measured_s: float
    numbers: Array = field(default_factory=lambda: np.zeros(0))
    """As NUMBERS names them."""

    def of(self, name: str) -> Array:
        start, stop = PLACES[name]
        return self.numbers[start:stop]


TWELVE = tuple(f"{resource}_{name}" for resource in RESOURCES for name in ("idle_s", "burst_s", "peak"))
NUMBERS = {
    "conditions": len(CONDITIONS), "setting": len(SETTING), "guess_s": 1, "roofline_s": 1, "layers_s": 1, "utilization": 1,
    "twelve": len(TWELVE), "caps": len(RESOURCES),
}  # fmt: skip
"""Of each row: what the networks are told of device, framework, cluster and plan; a guess, the roofline's and the layers' step;
the measured utilisation; what the timeline derives of the twelve, and the most that each resource could do."""
ENDS = np.cumsum(list(NUMBERS.values())).tolist()
PLACES = {name: (end - size, end) for (name, size), end in zip(NUMBERS.items(), ENDS, strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    programs: tuple[Program, ...]
    rows: tuple[Row, ...]


Found = tuple[Program, list[Row]]


def read_everything(*, every: int = 1) -> Data:
    """From the file of this physics, or made anew. `every`: of so many image models and runs of a source one is read."""
    path = cache_file() if every == 1 else cache_file().with_suffix(f".every{every}.npz")
    if path.is_file():
        return _load(path)
    programs: list[Program] = []
    rows: list[Row] = []
    for made in (_read_timm, _read_cases):
        for program, found in made(every):
            if found:
                rows += [replace(row, program=len(programs)) for row in found]
                programs.append(program)
    data = Data(programs=tuple(programs), rows=tuple(rows))
    _save(data, path)
    return data


def read_simulated(count: int = SIMULATED) -> Data:
    """Catalogue models on random GPUs, clusters, plans and parameter servers: what the laws say of them, nothing measured."""
    path = cache_file().with_suffix(f".simulated{count}.npz")
    if path.is_file():
        return _load(path)
    found = [one for one in _simulate(count) if one[1]]
    data = Data(
        programs=tuple(program for program, _ in found),
        rows=tuple(replace(rows[0], program=place) for place, (_, rows) in enumerate(found)),
    )
    _save(data, path)
    return data


def _simulate(count: int) -> Iterator[Found]:
    draw = np.random.default_rng(0)
    names = [entry.name for entry in catalog.workloads()]
    devices = [device.name for device in catalog.devices() if is_gpu(device)]
    links = ("1gbit", "10gbit", "25gbit", "100gbit")
    for _ in range(count):
        name, device = str(draw.choice(names)), str(draw.choice(devices))
        batch, local = int(2 ** draw.integers(0, 8)), int(2 ** draw.integers(0, 4))
        nodes = int(2 ** draw.integers(0, 4)) if draw.random() < 0.6 else 1
        speed = {"1gbit": "1Gb/s", "10gbit": "10Gb/s", "25gbit": "25Gb/s", "100gbit": "100Gb/s"}[
            str(draw.choice(links))
        ]
        size = nodes * local
        servers = int(2 ** draw.integers(0, 3)) if nodes > 1 and draw.random() < 0.4 else 0
        try:
            graph = catalog.workload(name, batch=batch, precision=str(draw.choice(["fp32", "bf16-amp", "fp16-amp"])))
            cluster = catalog.cluster(device=device, nodes=nodes, devices_per_node=local, inter=speed)
            job = Job(graph=graph, stack=catalog.stack("pytorch"))
            plan = Parallelism(data=size, servers=servers)
            described = _describe(job, f"{name} {device}", family=name, source="simulated")
            yield (
                described.program,
                [_make_row(described, job, cluster, plan, condition="simulated", measured_s=math.nan)],
            )
        except TraincastError:
            continue


def cache_file() -> Path:
    return Path(tempfile.gettempdir()) / f"traincast-interaction-{_name_physics()}.npz"


def _name_physics() -> str:
    room = Path(traincast.__file__).parent
    found = hashlib.sha256()
    for name in PHYSICS:
        part = room / name
        files = [part] if part.is_file() else sorted(p for p in part.rglob("*") if p.is_file())
        for file in files:
            # What this very fit makes, and compiled code, say nothing of the physics.
            if "_interaction" not in file.parts and file.suffix != ".pyc" and file.name not in NOT_PHYSICS:
                found.update(file.read_bytes())
    found.update((room / "cost" / "_interaction" / "nodes.py").read_bytes())
    return found.hexdigest()[:16]


def _read_timm(every: int) -> Iterator[Found]:
    from pyarrow import parquet

    graphs = TIMM / "graphs"
    for row in parquet.read_table(graphs / "train_index.parquet").to_pylist()[::every]:
        graph = image_models.read_graph(graphs / row["graph"])
        yield _timm_program(row, "train", graph, {("rtx-3090", "train NCHW"): row["nchw"]})
        if row["batch_nhwc"] == row["batch"]:
            yield _timm_program(
                row, "train NHWC", image_models.with_layout(graph), {("rtx-3090", "train NHWC"): row["nhwc"]}
            )
    last = _channels_last_steps()
    for row in parquet.read_table(graphs / "infer_index.parquet").to_pylist()[::every]:
        yield from _inference_programs(row, image_models.read_graph(graphs / row["graph"]), last)


def _inference_programs(row: Mapping[str, Any], graph: Graph, last: Mapping[tuple[Any, ...], float]) -> Iterator[Found]:
    folded = row["model"].startswith(image_models.REPARAMETERISED)
    new = image_models.without_norm_casts(graph)
    grouped = any("group_norm" in op.name for op in graph.ops)
    old = new if grouped or row["module"].startswith(image_models.FAST_NORM_MODULES) else graph
    for version, run in (("2.4", old), ("2.9.1", new)):
        if folded and version == "2.9.1":
            continue
        here, there = {}, {}
        for chip in ("3090", "4090"):
            key = row["model"], row["image"], row["batch"], f"rtx-{chip}", version
            here[f"rtx-{chip}", f"{chip} eager {version}"] = row.get(f"{chip}_e_{version}")
            there[f"rtx-{chip}", f"{chip} NHWC {version}"] = last.get(key)
        yield _timm_program(row, f"eager {version}", run, here)
        yield _timm_program(row, f"NHWC {version}", image_models.with_layout(run), there)
        compiled = {("rtx-4090", f"4090 compiled {version}"): row[f"4090_c_{version}"]}
        yield _timm_program(row, f"compiled {version}", run, compiled, compiled=True)


def _channels_last_steps() -> dict[tuple[Any, ...], float]:
    from pyarrow import parquet

    return {
        (row["model"].partition(".")[0], row["image"], row["batch"], row["gpu"], row["torch"]): row["step_s"]
        for row in parquet.read_table(TIMM / "steps.parquet").to_pylist()
        if row["mode"] == "inference" and row["layout"] == "channels_last" and not row["compiled"]
    }


def _timm_program(
    row: Mapping[str, Any], how: str, graph: Graph, labels: Mapping[tuple[str, str], float | None], *,
    compiled: bool = False,
) -> Found:  # fmt: skip
    stack = catalog.stack(OLD if graph.mode == "training_step" else NEW)
    job = Job(graph=graph, compiled=compiled, stack=stack)
    asked = {key: value for key, value in labels.items() if value and math.isfinite(value)}
    described = _describe(job, f"{row['model']} {how}", family=row["module"], source="timm")
    rows = []
    for (device, condition), measured in asked.items():
        rows.append(
            _make_row(
                described,
                job,
                _one(device),
                Parallelism(),
                condition=condition,
                measured_s=float(measured or 0),
                drawn=False,
            )
        )
    return described.program, rows


def _read_cases(every: int) -> Iterator[Found]:
    """Of each source and framework some rows, evenly; a run is asked with the constants of its own stack."""
    for table in CASES:
        rows = read_rows(str(SHARED / "cases" / f"{table}.parquet"))
        groups: dict[tuple[str, str], list[int]] = defaultdict(list)
        for index, row in enumerate(rows):
            if _scores(row):
                groups[str(row.get("source")), str(row.get("framework"))].append(index)
        hidden = hide_results(rows)
        for (source, framework), places in groups.items():
            picked = sorted({places[round(x)] for x in np.linspace(0, len(places) - 1, max(2, MOST_ROWS // every))})
            made = [one for place in picked for one in _read_case(rows[place], hidden[place], source)]
            sys.stderr.write(f"{table} {source} {framework}: {len(made)} of {len(places)} rows\n")
            yield from made


def _scores(row: Mapping[str, object]) -> bool:
    try:
        return parse_observation(row).scores_time
    except TraincastError:
        return False


def _read_case(row: Mapping[str, object], hidden: Mapping[str, object], source: str) -> list[Found]:
    try:
        question = translate(parse_case(hidden))
        job, publisher = question.job, source.partition("_")[0]
        described = _describe(job, f"{job.graph.name} {job.stack.name}", family=job.graph.name, source=publisher)
        measured_s = parse_observation(row).step_s or math.nan
        if not all(is_gpu(group.device) for group in question.cluster.groups):
            return []
        watched = row.get("measured_gpu_util_pct")
        made = _make_row(
            described, job, question.cluster, question.parallelism, condition=f"cases {source}", measured_s=measured_s,
            utilization=float(str(watched)) / 100 if watched is not None else math.nan,
            drawn=watched is not None or "dp" in str(row.get("group")),
        )  # fmt: skip
    except TraincastError:
        return []
    return [(described.program, [made])]


def _make_row(
    described: "_Described", job: Job, cluster: Cluster, plan: Parallelism, *, condition: str, measured_s: float,
    utilization: float = math.nan, drawn: bool = True,
) -> Row:  # fmt: skip
    seconds, rest_s, layers_s = described.price(job, cluster, plan)
    setting = read_setting(job, cluster, plan)
    roofline = Engine(costs=Pricing(ops=Roofline(), stack=job.stack, interaction=None), most=500)
    program = roofline.lower(job, cluster, plan)
    roofline_s = roofline.simulate(program, roofline.cost(program, job, cluster), job, cluster).duration_s
    twelve, caps = np.full(len(TWELVE), math.nan), np.full(len(RESOURCES), math.nan)
    if drawn and plan.micro_batches <= MOST_DRAWN:
        engine = Engine(costs=Pricing(stack=job.stack, interaction=None), most=500)
        found = engine.simulate(
            program, engine.cost(program, job, cluster), job, cluster, shown=Shown(spans=True, work=True)
        )
        twelve = np.array([profile_resources(found, cluster)[0].twelve()[name] for name in TWELVE])
    link = cluster.groups[0].inter.bytes_per_s if cluster.num_nodes > 1 else cluster.groups[0].intra.bytes_per_s
    caps = np.array([1.0, 1.0, link, link])
    numbers = np.concatenate([
        describe_conditions(cluster.groups[0].device, job.stack), setting.numbers,
        [setting.guess_s, roofline_s, layers_s, utilization], twelve, caps,
    ])  # fmt: skip
    return Row(program=-1, condition=condition, seconds=seconds, rest_s=rest_s, measured_s=measured_s, numbers=numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    """A program's merged nodes, and where its operators went."""

    program: Program
    places: Places
    merged: Places
    num_tasks: int

    def price(self, job: Job, cluster: Cluster, plan: Parallelism) -> tuple[Array, float, float]:
        """The seconds that physics gives each node, what of the step follows none, and the whole step."""
        engine = Engine(costs=Pricing(stack=job.stack, interaction=None), most=500)
        program = engine.lower(job, cluster, plan)
        estimates = engine.cost(program, job, cluster)
        timeline = engine.simulate(program, estimates, job, cluster)
        totals = [
            _spend(stage, [one.seconds for one in priced])
            for stage, priced in zip(program.stages, estimates, strict=True)
        ]
        each = max(totals, key=lambda one: float(one.sum()))
        stage = program.stages[next(place for place, one in enumerate(totals) if one is each)]
        names = classes_of(stage.tasks)
        whole = max(float(each.sum()), 1e-30)
        scaling_s = timeline.duration_s * sum(timeline.shares.get(name, 0.0) for name in SCALING)
        if plan.num_devices == 1 and len(stage.tasks) == self.num_tasks:
            seconds = _sum_up(self.merged, each[self.places], len(self.program.classes))
        else:
            seconds = self._divide(names, each)
        seconds *= scaling_s / whole
        return seconds, max(timeline.duration_s - float(seconds.sum()), 0.0), timeline.duration_s

    def _divide(self, names: Sequence[str | None], each: Array) -> Array:
        """Seconds of a class go to its nodes as on the reference device."""
        spent: dict[str, float] = defaultdict(float)
        for name, seconds in zip(names, each.tolist(), strict=True):
            if name is not None:
                spent[name] += seconds
        whole: dict[str, float] = defaultdict(float)
        for name, seconds in zip(self.program.classes, self.program.reference_s.tolist(), strict=True):
            whole[name] += seconds
        pairs = zip(self.program.classes, self.program.reference_s.tolist(), strict=True)
        return np.array([spent.get(name, 0.0) * seconds / max(whole[name], 1e-30) for name, seconds in pairs])


def _spend(stage: Stage, seconds: Sequence[float]) -> Array:
    """Of each task, collectives that only links are busy with left out."""
    there = np.array([name is not None or getattr(task, "kind", "") == "optimizer"
                      for name, task in zip(classes_of(stage.tasks), stage.tasks, strict=True)])  # fmt: skip
    return np.asarray(np.array(seconds) * np.array(stage.counts()) * there, dtype=np.float64)


def _sum_up(ends: Places, amounts: Array, size: int) -> Array:
    return np.asarray(np.bincount(ends, weights=amounts, minlength=size), dtype=np.float64)


def _describe(job: Job, name: str, *, family: str, source: str) -> _Described:
    stage = Engine(costs=Pricing(interaction=None), most=100).lower(job, _one("rtx-3090"), Parallelism()).stages[0]
    nodes = describe_nodes(stage)
    around = nodes.hear()
    merged, number = _merge(nodes, around)
    weights = np.maximum(nodes.reference_s, 1e-12)
    whole = _sum_up(merged, weights, number)

    def mean(table: Array) -> Array:
        total = np.zeros((number, table.shape[1]))
        np.add.at(total, merged, table * weights[:, None])
        return total / whole[:, None]

    first = {place: index for index, place in reversed(list(enumerate(merged.tolist())))}
    program = Program(
        name=name, family=family, source=source, behaviour=nodes.behaviour,
        classes=tuple(nodes.classes[first[place]] for place in range(number)), own=mean(nodes.own), around=mean(around),
        reference_s=whole, shares=nodes.shares(), totals=_add_up(stage), batch=job.graph.batch_size,
        data_type=data_type(job.graph), embedding=_embed(job.graph),
    )  # fmt: skip
    return _Described(program=program, places=nodes.places, merged=merged, num_tasks=len(stage.tasks))


def _embed(graph: Graph) -> Array:
    found = summarize(graph)
    return np.concatenate([found.traits, found.vector])


def _add_up(stage: Stage) -> dict[str, tuple[float, float, float]]:
    found: dict[str, tuple[float, float, float]] = {}
    for task, count in zip(stage.tasks, stage.counts(), strict=True):
        if isinstance(task, Op):
            flop, moved, calls = found.get(task.kind, (0.0, 0.0, 0.0))
            found[task.kind] = (
                flop + count * (task.flop or 0.0), moved + count * task.num_bytes, calls + count * task.num_calls,
            )  # fmt: skip
    return found


def _merge(nodes: Nodes, around: Array) -> tuple[Places, int]:
    """Equal operators are one node, and small ones one for each class."""
    share = nodes.reference_s / max(float(nodes.reference_s.sum()), 1e-30)
    keys: dict[tuple[Any, ...], int] = {}
    merged = np.empty(len(share), dtype=np.intp)
    rounded = np.round(np.concatenate([nodes.own, around], axis=1), 2)
    for place, name in enumerate(nodes.classes):
        key = (name,) if share[place] < LEAST_SHARE else (name, rounded[place].tobytes())
        merged[place] = keys.setdefault(key, len(keys))
    return merged, len(keys)


_CLUSTERS: dict[str, Cluster] = {}


def _one(device: str) -> Cluster:
    if device not in _CLUSTERS:
        _CLUSTERS[device] = catalog.cluster(device=device, nodes=1, devices_per_node=1)
    return _CLUSTERS[device]


def _save(data: Data, path: Path) -> None:
    words = {
        "programs": [
            [
                one.name,
                one.family,
                one.source,
                one.behaviour,
                one.classes,
                dict(one.shares),
                dict(one.totals),
                one.batch,
                one.data_type,
            ]
            for one in data.programs
        ],
        "rows": [[one.program, one.condition, one.rest_s, one.measured_s] for one in data.rows],
    }
    np.savez_compressed(
        path, words=np.array(json.dumps(words)),
        own=np.concatenate([one.own for one in data.programs]).astype(np.float32),
        around=np.concatenate([one.around for one in data.programs]).astype(np.float32),
        reference_s=np.concatenate([one.reference_s for one in data.programs]),
        seconds=np.concatenate([one.seconds for one in data.rows]),
        embedding=np.stack([one.embedding for one in data.programs]), numbers=np.stack([one.numbers for one in data.rows]),
    )  # fmt: skip


def _load(path: Path) -> Data:
    with np.load(path) as table:
        words = json.loads(str(table["words"]))
        own, around, reference_s, seconds = (table[name] for name in ("own", "around", "reference_s", "seconds"))
        embedding, numbers = table["embedding"], table["numbers"]
    programs: list[Program] = []
    start = 0
    for name, family, source, behaviour, classes, shares, totals, batch, kind in words["programs"]:
        stop = start + len(classes)
        programs.append(
            Program(
                name=name, family=family, source=source, behaviour=behaviour, classes=tuple(classes), shares=shares,
                totals=totals, batch=batch, data_type=kind, embedding=embedding[len(programs)],
                own=own[start:stop].astype(np.float64), around=around[start:stop].astype(np.float64),
                reference_s=reference_s[start:stop],
            )
        )  # fmt: skip
        start = stop
    rows: list[Row] = []
    start = 0
    for place, condition, rest_s, measured_s in words["rows"]:
        stop = start + len(programs[place].classes)
        rows.append(
            Row(
                program=place,
                condition=condition,
                rest_s=rest_s,
                measured_s=measured_s,
                seconds=seconds[start:stop],
                numbers=numbers[len(rows)],
            )
        )
        start = stop
    return Data(programs=tuple(programs), rows=tuple(rows))
