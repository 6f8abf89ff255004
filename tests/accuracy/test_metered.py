from pathlib import Path

from traincast.accuracy._cases import hide_results, parse_case, parse_observation, read_rows
from traincast.accuracy._translate import translate
from traincast.forecast._memory import watch_device


def test_what_the_meter_showed_of_real_runs_is_forecast_far_better_than_their_tensors(shared_cases: Path) -> None:
    rows = [row for row in read_rows(shared_cases / "single_gpu.parquet") if row["measured_memory_bytes"]]
    rows = [row for row in rows if parse_observation(row).scores_memory]
    used, tensors = [], []
    for row, hidden in list(zip(rows, hide_results(rows), strict=True))[::3]:
        question = translate(parse_case(hidden))
        assert question.counts_device
        seen = watch_device(question.job, question.cluster, question.parallelism)
        used.append(abs(seen.used_bytes / row["measured_memory_bytes"] - 1))
        tensors.append(abs(seen.live_bytes / row["measured_memory_bytes"] - 1))
    assert len(used) > 15
    assert sum(used) / len(used) < 0.06
    assert sum(tensors) / len(tensors) > 0.2
