"""`learn` and `calibrate` killed at the worst moments: what was there before is there after, and the next run goes on."""

from pathlib import Path

import pytest

from killing import run_until
from traincast.__main__ import main
from traincast.learn._calibrations import load_calibration
from traincast.store import Store


def write_runs(path: Path, *, factor: float) -> None:
    rows = [
        f"c{n},{('gpt2', 'gpt2-medium')[n % 2]},pytorch,a100-80g,{2 ** (n % 4)},{1 + n},bf16,512,{factor * 0.004 * (1 + n):.4f}"
        for n in range(4)
    ]
    head = "case_id,model,framework,gpu,n_gpus,micro_batch,dtype,seq_len,measured_step_s"
    path.write_text("\n".join([head, *rows]) + "\n")


def test_learning_again_that_is_killed_leaves_what_was_learnt_before(tmp_path: Path) -> None:
    runs, learnt = tmp_path / "runs.csv", tmp_path / "mine.json"
    write_runs(runs, factor=1.0)
    assert main(["learn", str(runs), "-o", str(learnt)]) == 0
    before = learnt.read_bytes()
    write_runs(runs, factor=2.0)
    # While the new file is written, and just before it takes the place of the old one.
    for call in ("os:fsync", "pathlib:Path.replace"):
        run_until("before", call, ["learn", str(runs), "-o", str(learnt)])
        assert learnt.read_bytes() == before
    assert main(["learn", str(runs), "-o", str(learnt)]) == 0
    assert learnt.read_bytes() != before
    assert load_calibration(learnt).runs is not None


def test_calibrating_that_is_killed_keeps_every_block_it_had_measured(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'traincast[torch]'")
    store, out = tmp_path / "m.db", tmp_path / "c.json"
    words = ["calibrate", "--budget", "5s", "--models", "2", "--held-out", "1", "--store", str(store), "-o", str(out)]
    kept: list[set[str]] = []
    for _ in range(2):
        run_until("after", "traincast.store:Store.append", words, number=3)
        with Store(store) as held:
            held.check()
            kept.append({f"{row}" for row in held.rows()})
    assert len(kept[0]) == 3
    assert kept[0] < kept[1]
    assert len(kept[1]) == 6
    assert not out.exists()
