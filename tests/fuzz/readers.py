"""Every reader of foreign files with valid samples of what it reads, and ways to damage them.

Used by tests/fuzz (a few inputs) and by benchmarks/fuzz.py (a million).
"""

import contextlib
import functools
import importlib.util
import io
import json
import random
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traincast.errors import TraincastError

CPU_LIMIT_S = 5.0
"""Of one input; CPU time, so that a busy machine does not look like a hang."""


class TooSlow(BaseException):
    """Not an Exception: a reader that catches everything must not hide its own hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    read: Callable[[Path], object]
    suffix: str
    samples: Callable[[Path], list[bytes]]
    """Valid files; the folder is for samples that only our own writers can make."""
    needs: tuple[str, ...] = ()
    cost: float = 1.0
    """About how many times as long as a cheap reader it takes: a campaign gives it fewer inputs."""

    @property
    def is_possible(self) -> bool:
        return all(importlib.util.find_spec(name) is not None for name in self.needs)


def mutate(sample: bytes, other: bytes, draw: random.Random) -> bytes:
    """A damaged sample: bytes, numbers, words, lines or JSON values changed, cut, doubled or taken from another file."""
    kind = draw.random()
    if kind < 0.04:
        return draw.randbytes(draw.choice([0, 1, 2, 16, 200, 4000]))
    damaged = sample
    for _ in range(draw.choice([1, 1, 1, 2, 3, 8])):
        damaged = draw.choice(MUTATIONS)(damaged, other, draw)
    return damaged[: 1 << 20]


def _flip(raw: bytes, other: bytes, draw: random.Random) -> bytes:
    if not raw:
        return raw
    place = draw.randrange(len(raw))
    return raw[:place] + bytes([draw.choice([0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)])]) + raw[place + 1 :]


def _cut(raw: bytes, other: bytes, draw: random.Random) -> bytes:
    start, stop = sorted(draw.choices(range(len(raw) + 1), k=2))
    return raw[:start] + raw[stop:] if draw.random() < 0.5 else raw[:stop]


def _double(raw: bytes, other: bytes, draw: random.Random) -> bytes:
    start, stop = sorted(draw.choices(range(len(raw) + 1), k=2))
    return raw[:stop] + raw[start:stop] * draw.choice([1, 1, 2, 20]) + raw[stop:]


def _splice(raw: bytes, other: bytes, draw: random.Random) -> bytes:
    return raw[: draw.randrange(len(raw) + 1)] + other[draw.randrange(len(other) + 1) :]


EXTREMES = (
    b"nan", b"NaN", b"inf", b"-Infinity", b"-1", b"0", b"1e309", b"1e-320", b"99999999999999999999999", b"-0.0", b"null",
    b"true", b'""', b"[]", b"{}", b"1.5", b"0x10", b"2024-13-45T99:00:00", b"\xff\xfe", b"\xc3\xa9", b"9" * 5000, b"''",
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_]+")


def _number(raw: bytes, other: bytes, draw: random.Random) -> bytes:
    return _replace(raw, _NUMBER, draw.choice(EXTREMES), draw)


def _word(raw: bytes, other: bytes, draw: random.Random) -> bytes:
    words = _WORD.findall(other) or [b"x"]
    return _replace(raw, _WORD, draw.choice([draw.choice(words), draw.choice(EXTREMES)]), draw)


def _replace(raw: bytes, pattern: "re.Pattern[bytes]", new: bytes, draw: random.Random) -> bytes:
    found = list(pattern.finditer(raw))
    if not found:
        return raw
    chosen = draw.choice(found)
    return raw[: chosen.start()] + new + raw[chosen.end() :]


def _lines(raw: bytes, other: bytes, draw: random.Random) -> bytes:
    lines = raw.splitlines(keepends=True)
    draw.shuffle(lines)
    return b"".join(lines)


VALUES: tuple[Any, ...] = (None, True, -1, 0, 1.5, 10**30, "", "x", [], {}, [[]], {"a": 1}, 1e300, -(10**12), ["x"], 3)


def _json(raw: bytes, other: bytes, draw: random.Random) -> bytes:
    """One value somewhere in the document exchanged, dropped, renamed or wrapped; what is no JSON stays."""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return _flip(raw, other, draw)
    holders: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in pairs:
            holders.append((value, key))
            walk(item)

    with contextlib.suppress(RecursionError):
        walk(data)
    if not holders:
        return json.dumps(draw.choice(VALUES)).encode()
    holder, key = draw.choice(holders)
    action = draw.random()
    if action < 0.6:
        holder[key] = draw.choice(VALUES)
    elif action < 0.7 and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    elif action < 0.8:
        del holder[key]
    elif action < 0.9:
        holder[key] = [holder[key]] * draw.choice([0, 1, 3])
    else:
        depth = draw.choice([3, 50, 3000])
        marker = json.dumps(data).encode()
        return b"[" * depth + marker + b"]" * depth
    return json.dumps(data).encode()


MUTATIONS = (_flip, _cut, _double, _splice, _number, _word, _lines, _json, _json, _number)


@contextlib.contextmanager
def limited(seconds: float = CPU_LIMIT_S) -> Iterator[None]:
    """Raise TooSlow after this much CPU time."""

    def expire(*_: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def feed(reader: Reader, content: bytes, folder: Path, *, limit_s: float = CPU_LIMIT_S) -> str:
    """Read one input: 'accepted', 'refused', or what went wrong and where. The first may import a framework: allow more."""
    path = folder / f"input{reader.suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    try:
        with warnings.catch_warnings(), limited(limit_s), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            reader.read(path)
    except TraincastError:
        return "refused"
    except TooSlow:
        return f"more than {limit_s} s of CPU time"
    except Exception as error:
        return f"{type(error).__name__} at {_place(error)}: {' '.join(str(error).split())[:120]}"
    return "accepted"


def _place(error: BaseException) -> str:
    """The innermost line of ours."""
    place, trace = "?", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "/traincast/" in name:
            place = f"{name.rpartition('/traincast/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


# The readers


def _graph_json(folder: Path) -> list[bytes]:
    from builders import make_mlp
    from traincast.files import save_graph
    from traincast.spec._graph import Scalable

    save_graph(make_mlp(layers=2), folder / "g.json")
    save_graph(Scalable(small=make_mlp(layers=1, batch=2), large=make_mlp(layers=1, batch=4)), folder / "s.json")
    save_graph(make_mlp(layers=1), folder / "g.json.gz")
    return [(folder / name).read_bytes() for name in ("g.json", "s.json", "g.json.gz")]


JOB = b"""
source = "gpt2"
[workload]
batch = 4
seq = 128
precision = "bf16-amp"
[cluster]
device = "a100-80g"
nodes = 2
devices_per_node = 4
inter = "100Gb/s"
price_per_device = 1.5
[parallelism]
tensor = 2
zero = 1
micro_batches = 2
[job]
steps = 1000
checkpoint_every_steps = 100
"""
GROUPS = b"""
name = "mixed"
[[groups]]
device = "a100-80g"
nodes = 1
devices_per_node = 4
usd_per_hour = 10.0
[[groups]]
device = {name = "own", memory_bytes = 8e9, memory_bytes_per_s = 1e11, vector_flop_per_s = {fp32 = 1e12}}
nodes = 1
devices_per_node = 4
intra = "64GB/s"
inter = {name = "x", bytes_per_s = 1e9, latency_s = 1e-5}
"""
OFFERS = b"""
[[offers]]
device = "a100-80g"
devices_per_node = 8
usd_per_hour = 12.5
region = "here"
max_nodes = 4
[[offers]]
node = "aws-p4d.24xlarge"
usd_per_hour = 20
provider = "x"
"""
CASES = b"""case_id,model,gpu,num_gpus,nodes,batch_per_gpu,precision,measured_step_s
a,resnet50,a100-40g,4,1,32,fp32,0.1
b,gpt2,v100,8,2,4,fp16-amp,0.2
"""
KINETO = json.dumps(
    {
        "schemaVersion": 1, "deviceProperties": [{"name": "NVIDIA A100"}], "baseTimeNanoseconds": 7,
        "traceEvents": [
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 1.0, "dur": 90},
            {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 1, "ts": 2.0, "dur": 50,
             "args": {"External id": 1}},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 3.0, "dur": 40.5,
             "args": {"External id": 2, "Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}},
            {"ph": "X", "cat": "kernel", "name": "sgemm", "pid": 0, "tid": 7, "ts": 20, "dur": 30,
             "args": {"External id": 2, "grid": [1, 1, 1], "block": [128, 1, 1]}},
            {"ph": "X", "cat": "kernel", "name": "ncclAllReduce", "pid": 0, "tid": 7, "ts": 60, "dur": 10,
             "args": {"Collective name": "allreduce", "Group size": 2, "In msg nelems": 100, "dtype": "Float"}},
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        ],
    }
).encode()  # fmt: skip
HF_CONFIG = json.dumps(
    {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 100,
        "n_positions": 64, "torch_dtype": "float32", "tie_word_embeddings": True,
    }
).encode()  # fmt: skip
LLAMA_CONFIG = json.dumps(
    {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 100,
        "max_position_embeddings": 64, "rope_theta": 10000.0,
    }
).encode()  # fmt: skip
LOGS: dict[str, tuple[str, bytes]] = {
    "csv": (".csv", b"job_id,submit_s,num_gpus,duration_s,priority\n7,30,2,100,1\n8,40,1,,2\n"),
    "swf": (".swf", b"; comment\n7 30 -1 100 2 -1 -1 2 100 -1 1 3 1 1 4 1 -1 -1\n8 31 5 10 1 -1 -1 1 9 -1 1 3 1 1 4 1 -1 -1\n"),
    "sacct": (".txt", b"JobID|User|Account|Submit|Start|End|AllocTRES\n"
              b"7|u|acc|2024-01-01T00:00:00|2024-01-01T00:01:00|2024-01-01T00:02:40|cpu=8,gres/gpu:a100=2,gres/gpu=2\n"),
    "kubernetes": (".json", json.dumps({"items": [
        {"kind": "Pod", "metadata": {"name": "p", "creationTimestamp": "2024-01-01T00:00:00Z"},
         "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
         "status": {"startTime": "2024-01-01T00:00:10Z",
                    "containerStatuses": [{"state": {"terminated": {"finishedAt": "2024-01-01T00:01:50Z"}}}]}},
        {"kind": "Workload", "metadata": {"name": "w", "creationTimestamp": "2024-01-01T00:00:00Z"},
         "spec": {"queueName": "q", "podSets": [
             {"count": 3, "template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}}]},
         "status": {"conditions": [{"type": "Admitted", "lastTransitionTime": "2024-01-01T00:00:10Z"},
                                   {"type": "Finished", "lastTransitionTime": "2024-01-01T00:00:20Z"}]}}]}).encode()),
}  # fmt: skip


def _calibration(folder: Path) -> list[bytes]:
    from traincast.learn import save_calibration
    from traincast.spec import Calibration, MachineRates, Rates
    from traincast.spec._measurement import Environment

    rates = Rates(flop_per_s=1e10, bytes_per_s=1e9, overhead_s=1e-6, log_spread=0.1, num_measurements=3)
    kept = MachineRates(
        name="c", environment=Environment(device="cpu", settings={"threads": 1}), rates={"matmul": rates}, fallback=rates,
    )  # fmt: skip
    save_calibration(Calibration(name="fuzzed", machine=kept), folder / "c.json")
    return [(folder / "c.json").read_bytes()]


def _rows() -> list[Any]:
    from traincast.spec._measurement import Block, Environment, Experiment

    return [
        (
            Experiment(subject="step", name="net", attrs={"batch": 4, "optimizer": "adamw"}),
            Environment(device="cpu", machine="m", software={"torch": "2"}, settings={"threads": 1}),
            Block(started_at="2024-01-01T00:00:00", wall_s=(0.1, 0.2), cpu_s=(0.1, 0.1), switches=(0, 1), canary_s=0.01,
                  resources={"rss_bytes": 1.0}),
        ),
        (
            Experiment(subject="operator", name="matmul", attrs={"m": 4, "flag": True, "share": 0.5}),
            Environment(device="gpu"), Block(started_at="", wall_s=(1e-3,)),
        ),
    ]  # fmt: skip


def _table(suffix: str) -> Callable[[Path], list[bytes]]:
    def make(folder: Path) -> list[bytes]:
        from traincast.store import export_table

        export_table(_rows(), folder / f"t{suffix}")
        return [(folder / f"t{suffix}").read_bytes()]

    return make


def _case_parquet(folder: Path) -> list[bytes]:
    import pyarrow.csv
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.csv.read_csv(io.BytesIO(CASES)), folder / "c.parquet")
    return [(folder / "c.parquet").read_bytes()]


def _tidy_parquet(folder: Path) -> list[bytes]:
    import pyarrow.csv
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.csv.read_csv(io.BytesIO(LOGS["csv"][1])), folder / "l.parquet")
    return [(folder / "l.parquet").read_bytes()]


def _onnx(folder: Path) -> list[bytes]:
    from onnx import TensorProto, helper

    weight = helper.make_tensor("w", TensorProto.FLOAT, [8, 4], [0.1] * 32)
    shape = helper.make_tensor("s", TensorProto.INT64, [2], [-1, 8])
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["r"]),
        helper.make_node("Gemm", ["r", "w"], ["y"]),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("Softmax", ["z"], ["out"], axis=1),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", 4])], [weight, shape],
    )  # fmt: skip
    return [helper.make_model(graph).SerializeToString()]


def _tensorflow_graph() -> Any:
    from tensorboard.compat.proto import graph_pb2

    text = """
    node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } }
           attr { key: "shape" value { shape { dim { size: -1 } dim { size: 8 } dim { size: 8 } dim { size: 3 } } } } }
    node { name: "k" op: "VarHandleOp" attr { key: "dtype" value { type: DT_FLOAT } }
           attr { key: "shape" value { shape { dim { size: 3 } dim { size: 3 } dim { size: 3 } dim { size: 4 } } } } }
    node { name: "kr" op: "ReadVariableOp" input: "k" attr { key: "dtype" value { type: DT_FLOAT } } }
    node { name: "c" op: "Conv2D" input: "x" input: "kr" attr { key: "padding" value { s: "SAME" } }
           attr { key: "strides" value { list { i: [1, 2, 2, 1] } } } }
    node { name: "r" op: "Relu" input: "c" }
    node { name: "p" op: "MaxPool" input: "r" attr { key: "ksize" value { list { i: [1, 2, 2, 1] } } }
           attr { key: "strides" value { list { i: [1, 2, 2, 1] } } } attr { key: "padding" value { s: "VALID" } } }
    node { name: "shape" op: "Const" attr { key: "dtype" value { type: DT_INT32 } }
           attr { key: "value" value { tensor { dtype: DT_INT32 tensor_shape { dim { size: 2 } } int_val: -1 int_val: 16 } } } }
    node { name: "f" op: "Reshape" input: "p" input: "shape" }
    node { name: "w" op: "VarHandleOp" attr { key: "dtype" value { type: DT_FLOAT } }
           attr { key: "shape" value { shape { dim { size: 16 } dim { size: 10 } } } } }
    node { name: "wr" op: "ReadVariableOp" input: "w" }
    node { name: "m" op: "MatMul" input: "f" input: "wr" }
    node { name: "o" op: "Softmax" input: "m" }
    """
    from google.protobuf import text_format

    return text_format.Parse(text, graph_pb2.GraphDef())


def _pb(folder: Path) -> list[bytes]:
    return [_tensorflow_graph().SerializeToString()]


def _pbtxt(folder: Path) -> list[bytes]:
    from google.protobuf import text_format

    return [text_format.MessageToString(_tensorflow_graph()).encode()]


def _saved_model(folder: Path) -> list[bytes]:
    from tensorboard.compat.proto import meta_graph_pb2

    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.CopyFrom(_tensorflow_graph())
    raw = meta.SerializeToString()
    size, packed = len(raw), bytearray(b"\x08\x01\x12")
    while size > 127:
        packed.append(size & 127 | 128)
        size >>= 7
    return [bytes(packed) + bytes([size]) + raw]


def _given(*samples: bytes) -> Callable[[Path], list[bytes]]:
    return lambda folder: list(samples)


def _read_job(path: Path) -> object:
    """A job file up to the workload's own recording, which is no reading."""
    from traincast.forecast import build_job
    from traincast.resolve import build_cluster, complete_plan, fill_in
    from traincast.spec import Question

    whole = fill_in(Question(source=str(path)))
    cluster = build_cluster(whole)
    complete_plan(whole.parallelism, num_devices=cluster.num_devices)
    from builders import make_mlp

    return build_job(whole.job, make_mlp(layers=1))


def _read_cases(path: Path) -> object:
    from traincast.accuracy._cases import parse_case, parse_observation, read_rows

    refused = None
    for row in read_rows(path):
        try:
            parse_case(row)
            parse_observation(row)
        except TraincastError as error:
            refused = error
    return refused


def _lazily(module: str, function: str, **options: Any) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        return getattr(__import__(module, fromlist=[function]), function)(path, **options)

    return read


def _compare(path: Path) -> object:
    from builders import make_cluster, make_mlp
    from traincast.accuracy._traces import compare_trace
    from traincast.forecast import forecast
    from traincast.spec import Job

    if not _FORECASTS:
        _FORECASTS.append(forecast(Job(graph=make_mlp()), make_cluster(), draw=True))
    return compare_trace(path, _FORECASTS[0], make_mlp())


_FORECASTS: list[Any] = []


def _read_source(path: Path) -> object:
    from traincast.capture import load_source

    return load_source(str(path))


def _read_saved_model(path: Path) -> object:
    from traincast.capture._tensorflow import read_tensorflow

    return read_tensorflow(path.parent)


CONFIGS = Path(__file__).parents[1] / "configs" / "files"
SAMPLES = Path(__file__).parent / "samples"
PRICES = b"""
[[prices]]
machine = "aws-p5.48xlarge"
terms = "spot"
usd_per_hour = 25.0
region = "us-east-1"
date = "2026-11-01"
source = "our account"
interruptions_per_day = 2
[[regions]]
name = "us-east"
grams_co2_per_kwh = 400
"""
SLURM = b"""SchedulerParameters=bf_interval=1,bf_resolution=1,bf_window=100000
PriorityType=priority/multifactor
PriorityWeightAge=100
PriorityMaxAge=7-00:00:00
PreemptType=preempt/qos
PreemptMode=REQUEUE
NodeName=n[1-2] CPUs=16 RealMemory=1000 Gres=gpu:a100:4 Weight=2
NodeName=r[0-1]-g[1,3] CPUs=8 RealMemory=1000 Gres=gpu:2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1
PartitionName=short Nodes=n1 MaxTime=1-02:00 DefaultTime=60 PreemptMode=off
"""
QOS = (
    b"Name|Priority|Preempt|PreemptMode|GrpTRES|MaxTRESPU|MaxJobsPU|MaxWall\n"
    b"low|0||requeue|gres/gpu=4|||1-00:00:00\nhigh|9|low|||cpu=4|3|\n"
)
SINFO = b"NODELIST|GRES|CPUS|MEMORY|STATE\nn1|gpu:a100:4(S:0-1)|64|512000|mixed\nn2|gpu:4|64|512000+|idle\n"
ASSOCIATIONS = b"Cluster|Account|User|Share|ParentName\nc|root||1|\nc|a||3|root\nc|a|u|2|\nc|b|v|parent|\n"
QUEUES = b"""apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: a}
spec:
  cohort: all
  queueingStrategy: StrictFIFO
  preemption: {reclaimWithinCohort: Any, withinClusterQueue: LowerPriority}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu, cpu]
    flavors:
    - name: a100
      resources:
      - {name: nvidia.com/gpu, nominalQuota: 4, borrowingLimit: 2}
      - {name: cpu, nominalQuota: 999}
---
kind: LocalQueue
metadata: {name: a-local, namespace: team-a}
spec: {clusterQueue: a}
"""
ASKED = {
    "forecast": {"workload": {"name": "resnet18", "batch": 8, "precision": "bf16"}, "cluster": {"device": "a100-80g", "nodes": 2,
                 "devices_per_node": 4}, "parallelism": {"zero": 1}, "job": {"steps": 100, "checkpoint_every_steps": 10}},
    "plan": {"workload": {"name": "gpt2", "seq": 256}, "cluster": {"device": "a100-80g", "devices_per_node": 4},
             "job": {"steps": 1000}, "global_batch": 16, "max_gpus": 4, "top": 10, "space": {"zero": [0, 1], "pipeline": [1]}},
    "fit": {"workload": {"name": "gpt2", "batch": 1}, "cluster": {"groups": [{"device": "t4", "nodes": 1}]}, "confidence": 0.9},
    "schedule": {"trace": {"synthetic": 80}, "cluster": "2x8:a100@2.5", "policies": ["fifo", "srtf"], "seed": 3},
}  # fmt: skip


def _configs(name: str) -> Callable[[Path], list[bytes]]:
    return lambda folder: [(CONFIGS / name).read_bytes()]


RECIPES = {
    "torchtitan_llama3_registry.py.txt": ":llama3_8b",
    "megatron_bridge_llama3.py.txt": ":llama3_70b_pretrain_config",
}
"""Which of several recipes of a file is asked for."""


def _read_config(path: Path, *, recipe: str = "") -> object:
    """A configuration up to the question that it asks."""
    from traincast.configs import merge_configs
    from traincast.spec import ConfigText, Question, WorkloadOptions

    text = ConfigText(name=path.name + recipe, text=path.read_text(encoding="utf-8", errors="replace"))
    return merge_configs(Question(source="gpt2", workload=WorkloadOptions(), configs=(text,)), local=False)


def _read_body(path: Path) -> None:
    """A request of any route, as the service checks it before anything is computed."""
    from traincast.service._faults import NotRecorded
    from traincast.service._requests import BODIES, read_request

    task = {"limits": {"json_depth": 40}, "folder": "", "models": {}}
    refusals: list[Exception] = []
    for kind in BODIES:
        try:
            read_request(task, path.read_bytes(), kind)
        except (TraincastError, NotRecorded) as error:
            refusals.append(error)
    if len(refusals) == len(BODIES):
        raise TraincastError(str(refusals[0]))


def _answer_body(path: Path) -> bytes:
    """A forecast by HTTP from its body to its answer."""
    import dataclasses

    from traincast.service._answers import TASKS
    from traincast.service._faults import NotRecorded
    from traincast.service._limits import Limits

    task = {"limits": dataclasses.asdict(Limits()), "folder": "", "models": {}, "options": ""}
    try:
        return TASKS["forecast"](task, path.read_bytes(), lambda *_: None)
    except NotRecorded as error:
        raise TraincastError("an upload is read elsewhere") from error


def _answer_graph(path: Path) -> object:
    """A graph from its file to its forecast, its fit and its neighbours."""
    from builders import make_cluster
    from traincast.embed import summarize
    from traincast.files import load_graph
    from traincast.forecast import forecast
    from traincast.spec import Job, Scalable

    loaded = load_graph(path)
    graph = loaded.small if isinstance(loaded, Scalable) else loaded
    summarize(graph)
    return forecast(Job(graph=graph), make_cluster())


def _simulate_jobs(path: Path) -> object:
    """A log of jobs from its file to a schedule of them."""
    from traincast.schedule import Setting, parse_fleet, read_trace, run_policy

    return run_policy("srtf", read_trace(path).jobs, Setting(fleet=parse_fleet("2x8:a100")))


def _store(folder: Path) -> list[bytes]:
    from traincast.store import Store

    (folder / "s.db").unlink(missing_ok=True)
    with Store(folder / "s.db") as store:
        for row in _rows():
            store.append(*row)
    return [(folder / "s.db").read_bytes()]


def _read_store(path: Path) -> None:
    from traincast.store import Store

    for name in ("-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)
    with Store(path) as store:
        store.check()
        store.counts()


READERS: dict[str, Reader] = {
    "graph": Reader(read=_lazily("traincast.files", "load_graph"), suffix=".json", samples=_graph_json),
    "job file": Reader(read=_read_job, suffix=".toml", samples=_given(JOB)),
    "cluster table": Reader(read=_lazily("traincast.catalog._nodes", "read_cluster"), suffix=".toml", samples=_given(GROUPS)),
    "price list": Reader(read=_lazily("traincast.plan._offers", "read_offers"), suffix=".toml", samples=_given(OFFERS)),
    "case table csv": Reader(read=_read_cases, suffix=".csv", samples=_given(CASES)),
    "case table parquet": Reader(
        read=_read_cases, suffix=".parquet", samples=_case_parquet, needs=("pyarrow",), cost=2
    ),
    "calibration": Reader(read=_lazily("traincast.files", "load_calibration"), suffix=".json", samples=_calibration),
    "measurements csv": Reader(read=_lazily("traincast.store", "import_table"), suffix=".csv", samples=_table(".csv")),
    "measurements parquet": Reader(
        read=_lazily("traincast.store", "import_table"), suffix=".parquet", samples=_table(".parquet"), needs=("pyarrow",),
        cost=2,
    ),
    "kineto compare": Reader(read=_compare, suffix=".json", samples=_given(KINETO), cost=4),
    "hf config": Reader(
        read=_lazily("traincast.capture._huggingface", "describe_config"), suffix=".json",
        samples=_given(HF_CONFIG, LLAMA_CONFIG), needs=("torch", "transformers"), cost=4,
    ),
    "hf model": Reader(
        read=_read_source, suffix=".json", samples=_given(HF_CONFIG, LLAMA_CONFIG), needs=("torch", "transformers"),
        cost=400,
    ),
    "onnx": Reader(read=_read_source, suffix=".onnx", samples=_onnx, needs=("torch", "onnx"), cost=8),
    "tensorflow pb": Reader(read=_read_source, suffix=".pb", samples=_pb, needs=("tensorboard",), cost=4),
    "tensorflow pbtxt": Reader(read=_read_source, suffix=".pbtxt", samples=_pbtxt, needs=("tensorboard",), cost=4),
    "tensorflow saved model": Reader(
        read=_read_saved_model, suffix="/saved_model.pb", samples=_saved_model, needs=("tensorboard",), cost=4
    ),
    "jobs tidy parquet": Reader(
        read=_lazily("traincast.schedule._traces", "read_trace", kind="tidy"), suffix=".parquet", samples=_tidy_parquet,
        needs=("pyarrow",), cost=2,
    ),
    **{
        f"jobs {name}": Reader(
            read=_lazily("traincast.schedule._traces", "read_trace", kind=name), suffix=suffix, samples=_given(sample)
        )
        for name, (suffix, sample) in LOGS.items()
    },
    "jobs guessed": Reader(
        read=_lazily("traincast.schedule._traces", "read_trace"), suffix=".csv",
        samples=_given(*(sample for suffix, sample in LOGS.values() if suffix == ".csv")),
    ),
    **{
        f"config {file}": Reader(
            read=functools.partial(_read_config, recipe=RECIPES.get(file, "")), suffix=Path(file.removesuffix(".txt")).suffix,
            samples=_configs(file), needs=("yaml",), cost=25,
        )
        for file in sorted(each.name for each in CONFIGS.iterdir()) if file != "README.md"
    },
    "stablehlo": Reader(
        read=_lazily("traincast.capture._stablehlo", "read_stablehlo"), suffix=".mlir", cost=40,
        samples=lambda folder: [(SAMPLES / "step.mlir").read_bytes()],
    ),
    "price table": Reader(read=_lazily("traincast.plan", "read_prices"), suffix=".toml", samples=_given(PRICES), cost=2),
    "slurm.conf": Reader(
        read=_lazily("traincast.schedule._slurm.site", "read_site"), suffix=".conf", samples=_given(SLURM), cost=5
    ),
    "sacctmgr qos": Reader(read=_lazily("traincast.schedule._slurm.accounting", "read_qos"), suffix=".txt", samples=_given(QOS)),
    "sinfo": Reader(read=_lazily("traincast.schedule._slurm.site", "read_sinfo"), suffix=".txt", samples=_given(SINFO)),
    "sacctmgr associations": Reader(
        read=_lazily("traincast.schedule._slurm.accounting", "read_associations"), suffix=".txt", samples=_given(ASSOCIATIONS)
    ),
    "kueue queues": Reader(
        read=_lazily("traincast.schedule._manifests", "read_queues"), suffix=".yaml", samples=_given(QUEUES),
        needs=("yaml",), cost=4,
    ),
    "store": Reader(read=_read_store, suffix=".db", samples=_store, cost=4),
    "graph to its forecast": Reader(read=_answer_graph, suffix=".json", samples=_graph_json, cost=8),
    "jobs to their schedule": Reader(
        read=_simulate_jobs, suffix=".csv", samples=_given(*(sample for suffix, sample in LOGS.values() if suffix == ".csv")),
        cost=4,
    ),
    "http bodies": Reader(
        read=_read_body, suffix=".json", samples=_given(*(json.dumps(each).encode() for each in ASKED.values())),
        needs=("pydantic",), cost=2,
    ),
    "http forecast": Reader(
        read=_answer_body, suffix=".json", samples=_given(json.dumps(ASKED["forecast"]).encode()), needs=("pydantic",), cost=60,
    ),
}  # fmt: skip
