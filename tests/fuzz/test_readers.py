"""Readers refuse damaged files with our own errors: no crash, no hang. benchmarks/fuzz.py does the same a million times."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.grammar import change_message, mutate_by_grammar, parse_message
from fuzz.readers import READERS, feed, mutate

CHEAP = [name for name, reader in READERS.items() if reader.cost <= 4]
DEAR = [name for name, reader in READERS.items() if reader.cost > 4]
FINE = ("accepted", "refused")


def need(name: str) -> None:
    for package in READERS[name].needs:
        pytest.importorskip(package)


@pytest.mark.parametrize("name", [*CHEAP, *DEAR])
def test_the_samples_of_every_reader_are_valid(name: str, tmp_path: Path) -> None:
    need(name)
    reader = READERS[name]
    assert {feed(reader, sample, tmp_path, limit_s=120) for sample in reader.samples(tmp_path)} == {"accepted"}


@pytest.mark.parametrize("name", CHEAP)
def test_damaged_files_are_refused_in_our_own_words(name: str, tmp_path: Path) -> None:
    need(name)
    reader = READERS[name]
    samples = reader.samples(tmp_path)
    feed(reader, samples[0], tmp_path, limit_s=120)

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        draw = random.Random(seed)
        change = draw.choice((mutate, mutate_by_grammar))
        assert feed(reader, change(draw.choice(samples), draw.choice(samples), draw), tmp_path) in FINE

    check()


@pytest.mark.parametrize("name", DEAR)
def test_damaged_models_are_refused_in_our_own_words(name: str, tmp_path: Path) -> None:
    need(name)
    reader = READERS[name]
    samples = reader.samples(tmp_path)
    feed(reader, samples[0], tmp_path, limit_s=120)
    draw = random.Random(name)
    for number in range(12):
        change = mutate if number % 2 else mutate_by_grammar
        assert feed(reader, change(draw.choice(samples), draw.choice(samples), draw), tmp_path) in FINE


def test_a_message_changed_by_its_grammar_is_still_a_message(tmp_path: Path) -> None:
    need("onnx")
    sample = READERS["onnx"].samples(tmp_path)[0]
    draw = random.Random(3)
    changed = [change_message(sample, sample, draw) for _ in range(40)]
    assert len(set(changed)) > 20
    assert all(parse_message(each) for each in changed)


@pytest.mark.parametrize("name", ["calibration"])
@pytest.mark.parametrize("value", [b"1e308", b"1e9", b"-1"])
def test_an_uncertainty_without_numbers_is_refused(name: str, value: bytes, tmp_path: Path) -> None:
    """exp of a huge log error has no number: it is refused where the file is read, not where it is used."""
    reader = READERS[name]
    sample = reader.samples(tmp_path)[0]
    damaged = re.sub(rb'("log_s(?:pread|igma)": )[^,}]+', rb"\g<1>" + value, sample)
    assert damaged != sample
    assert feed(reader, damaged, tmp_path, limit_s=120) == "refused"


MANY_DIGITS = b"9" * 5000
FOUND = {
    "a gzip file whose body is damaged": ("graph", b"\x1f\x8b\x08\x00" + bytes(6) + b"\xff" * 40),
    "a number of thousands of digits in JSON": ("graph", b'{"format": ' + MANY_DIGITS + b"}"),
    "a number of thousands of digits in TOML": ("cluster table", b"nodes = " + MANY_DIGITS),
    "a whole number that no float can hold": (
        "job file",
        b'source = "gpt2"\n[cluster]\ndevice = "a100-80g"\nprice_per_device = ' + b"9" * 400,
    ),
    "more nodes than a list can hold": (
        "job file",
        b'source = "gpt2"\n[cluster]\ndevice = "a100-80g"\ndevices_per_node = 4\nnodes = ' + b"9" * 40,
    ),
    "deeply nested TOML": ("job file", b"source = " + b"[" * 3000 + b"]" * 3000),
    "a source too long to be a file": ("job file", b'source = "' + b"x" * 5000 + b'"'),
    "an empty table of measurements": ("measurements csv", b""),
    "a message size that is no number": (
        "kineto compare",
        b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "nccl", "ts": 1, "dur": 1,'
        b' "args": {"Group size": 2, "In msg nelems": ""}}]}',
    ),
    "a thread that is a table": (
        "kineto compare",
        b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1, "tid": {}}]}',
    ),
    "a log of jobs that is no UTF-8": ("jobs kubernetes", b'{"items": [{"kind": "\xff"}]}'),
    "a log of jobs that is deeply nested": ("jobs kubernetes", b"[" * 5000 + b"]" * 5000),
    "a cell larger than csv reads": ("jobs csv", b"job_id,submit_s,num_gpus\n" + b"x" * 200_000 + b",1,1\n"),
    "endlessly many GPUs": (
        "jobs kubernetes",
        b'{"items": [{"kind": "Workload", "metadata": {"name": "w", "creationTimestamp": "2024-01-01T00:00:00Z"}, "spec":'
        b' {"podSets": [{"count": 1e309, "template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu":'
        b' "1"}}}]}}}]}}]}',
    ),
    "architectures that are no list": ("hf config", b'{"architectures": 3, "model_type": "gpt2"}'),
    "a vocabulary beyond any token id": ("hf config", b'{"model_type": "gpt2", "vocab_size": 1000000000000000000000}'),
    "items that are no list": ("jobs kubernetes", b'{"items": null}'),
    "a weight that is no number": ("slurm.conf", b"NodeName=n1\nPartitionName=p Nodes=n1\nPriorityWeightAge=x\n"),
    "a tier that is no number": ("slurm.conf", b"NodeName=n1\nPartitionName=p Nodes=n1 PriorityTier=1p\n"),
    "memory that is no number": ("slurm.conf", b"NodeName=n1 RealMemory=\x01000\nPartitionName=p Nodes=n1\n"),
    "thousands of digits of CPUs": ("slurm.conf", b"NodeName=n1 CPUs=" + MANY_DIGITS + b"\nPartitionName=p Nodes=n1\n"),
    "more hosts than anybody has": ("slurm.conf", b"NodeName=n" + b"[1-9999]" * 9 + b"\nPartitionName=p Nodes=ALL\n"),
    "a queue whose spec is a number": ("kueue queues", b"kind: ClusterQueue\nspec: 1.5\n"),
    "a queue whose name is a word": ("kueue queues", b"kind: Queue\nmetadata: true\n"),
    "a list where a word belongs": ("config maxtext-llama3_70b.yml", b"model_name: [llama3-70b]\nper_device_batch_size: 2\n"
                                    b"remat_policy: [1, 2]\nici_fsdp_parallelism: 4\nmax_target_length: 8192\n"),
    "a flag of a hundred thousand digits": (
        "config trl-distillation.sh", b"python trl/scripts/distillation.py --learning_rate " + b"9" * 100_000 + b"x\n",
    ),
    "a body that is one number": ("http bodies", b"99999"),
    "a store that is cut off": ("store", b"SQLite format 3\0" + bytes(300)),
}  # fmt: skip


def test_an_onnx_operation_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    need("onnx")
    sample = READERS["onnx"].samples(tmp_path)[0]
    assert feed(READERS["onnx"], sample.replace(b"Relu", b"\xffelu"), tmp_path, limit_s=120) == "refused"


def test_a_row_of_limits_with_more_cells_than_columns_is_read(tmp_path: Path) -> None:
    content = b"Name|Priority\nlow|0|what|is|this\n"
    assert feed(READERS["sacctmgr qos"], content, tmp_path, limit_s=120) == "accepted"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("tensorflow pb", "tensorflow-loop.pb"),
        ("tensorflow pbtxt", "tensorflow-loop.pbtxt"),
        ("tensorflow saved model", "tensorflow-reshape.pb"),
        ("measurements csv", "measurements-digits.csv"),
        ("tensorflow saved model", "tensorflow-read-of-nothing.pb"),
    ],
)
def test_files_that_once_crashed_a_reader_are_refused(name: str, file: str, tmp_path: Path) -> None:
    need(name)
    content = (Path(__file__).parent / "found" / file).read_bytes()
    assert feed(READERS[name], content, tmp_path, limit_s=120) == "refused"


@pytest.mark.parametrize("name", ["measurements parquet", "jobs tidy parquet"])
def test_a_parquet_type_that_arrow_cannot_read_is_refused(name: str, tmp_path: Path) -> None:
    need(name)
    folder = Path(__file__).parent / "found"
    content = (folder / f"{name.replace(' ', '-')}.parquet").read_bytes()
    assert feed(READERS[name], content, tmp_path, limit_s=120) == "refused"


@pytest.mark.parametrize("what", list(FOUND))
def test_what_once_crashed_a_reader_is_refused(what: str, tmp_path: Path) -> None:
    name, content = FOUND[what]
    need(name)
    assert feed(READERS[name], content, tmp_path, limit_s=120) in FINE
