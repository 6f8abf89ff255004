"""What is too large stays too large: once a size is refused, every larger one is, and no refusal takes long."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.readers import ASKED, HF_CONFIG, JOB, READERS, SLURM, feed

LONGEST_S = 2.0


def _config(key: str) -> Callable[[int], bytes]:
    return lambda size: json.dumps({**json.loads(HF_CONFIG), key: size}).encode()


def _forecast(table: str, key: str) -> Callable[[int], bytes]:
    asked = ASKED["forecast"]
    return lambda size: json.dumps({**asked, table: {**asked[table], key: size}}).encode()  # type: ignore[dict-item]


SIZES: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "layers of a config": ("hf config", _config("n_layer")),
    "width of a config": ("hf config", _config("n_embd")),
    "words of a config": ("hf config", _config("vocab_size")),
    "nodes of a job": ("job file", lambda size: JOB.replace(b"nodes = 2\n", b"nodes = %d\n" % size)),
    "ranks of a job": ("job file", lambda size: JOB.replace(b"tensor = 2\n", b"tensor = %d\n" % size)),
    "hosts of a cluster": ("slurm.conf", lambda size: SLURM.replace(b"n[1-2]", b"n[1-%d]" % max(2, size))),
    "CPUs of a node": ("slurm.conf", lambda size: SLURM.replace(b"CPUs=16", b"CPUs=%d" % size)),
    "nodes of a request": ("http forecast", _forecast("cluster", "nodes")),
    "samples of a request": ("http forecast", _forecast("workload", "batch")),
    "steps of a request": ("http forecast", _forecast("job", "steps")),
    "depth of a request": ("http bodies", lambda size: b"[" * min(size, 10**5) + b"]" * min(size, 10**5)),
}  # fmt: skip


@pytest.mark.parametrize("what", list(SIZES))
def test_what_is_ten_times_too_large_is_refused_as_soon(what: str, tmp_path: Path) -> None:
    name, make = SIZES[what]
    reader = READERS[name]
    for package in reader.needs:
        pytest.importorskip(package)
    feed(reader, reader.samples(tmp_path)[0], tmp_path, limit_s=120)
    verdicts = []
    for power in range(0, 31, 3):
        began = time.process_time()
        verdicts.append(feed(reader, make(10**power), tmp_path, limit_s=20))
        if verdicts[-1] == "refused":
            assert time.process_time() - began < LONGEST_S, (what, power)
    assert set(verdicts) <= {"accepted", "refused"}, verdicts
    assert verdicts[-1] == "refused"
    # The smallest may be too small; past the first that is accepted there is one end.
    after = verdicts[verdicts.index("accepted") :] if "accepted" in verdicts else verdicts
    assert after == sorted(after), verdicts
