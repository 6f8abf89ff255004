"""What is answered about one case, and how such answers are written to a table."""

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from traincast.catalog import LogFacts
from traincast.errors import InvalidInput, MissingExtra
from traincast.files import write_whole
from traincast.noun import noun
from traincast.spec import Forecast

OK, UNSUPPORTED = "ok", "unsupported"
_PLACES = 9


@noun
class Prediction:
    """One row of answers; the numbers are None where the case is not supported."""

    case_id: str
    step_s: float | None = None
    step_low_s: float | None = None
    step_high_s: float | None = None
    memory_bytes: float | None = None
    """As the source counts it: of the stage it watched, in its unit, by its meter."""
    peak_bytes: float | None = None
    """Of the fullest rank, as `traincast forecast` prints it."""
    fits: bool | None = None
    fit_probability: float | None = None
    status: str = OK
    reason: str = ""
    """Why it is not supported, or what had to be assumed."""
    compute_share: float | None = None
    memory_share: float | None = None
    communication_share: float | None = None
    host_share: float | None = None
    bubble_share: float | None = None
    gpu_utilization: float | None = None
    """Mean of a whole run as nvidia-smi shows it, 0 to 1."""

    @property
    def answered(self) -> bool:
        return self.status == OK and self.step_s is not None


def summarize(
    forecast: Forecast, *, case_id: str, assumptions: Sequence[str] = (), logs: LogFacts | None = None,
    device_bytes: float | None = None,
) -> Prediction:  # fmt: skip
    """`fits` is about the fullest stage; the memory is that of the stage the source watched, in the unit it took for bytes, or
    `device_bytes` where it read the device's own meter."""
    memory = forecast.memory
    counted = logs or LogFacts()
    watched = counted.watched_stage is not None and memory.stage_peaks
    peak_bytes = memory.stage_peaks[counted.watched_stage or 0] if watched else memory.peak_bytes
    if not counted.counts_reserved:
        peak_bytes -= memory.by_role.get("allocator", 0.0)
    shares = forecast.timeline.shares
    return Prediction(
        case_id=case_id,
        step_s=forecast.step.seconds,
        step_low_s=forecast.step.low_s,
        step_high_s=forecast.step.high_s,
        memory_bytes=(device_bytes or peak_bytes) / counted.memory_unit,
        peak_bytes=memory.peak_bytes,
        fits=forecast.memory.fits,
        fit_probability=max(memory.fit_probability, memory.frugal_probability or 0.0),
        reason="; ".join(assumptions),
        compute_share=shares.get("compute", 0.0),
        memory_share=shares.get("memory", 0.0),
        communication_share=shares.get("communication", 0.0),
        host_share=shares.get("host", 0.0),
        bubble_share=shares.get("bubble", 0.0),
        gpu_utilization=forecast.run_utilization,
    )


def refuse(case_id: str, reason: str, *, fits: bool | None = None) -> Prediction:
    return Prediction(case_id=case_id, status=UNSUPPORTED, reason=" ".join(reason.split()), fits=fits)


def check_target(path: str | os.PathLike[str]) -> None:
    """Complain about a table that could not be written before any work is done for it."""
    place = Path(path)
    if place.suffix not in (".parquet", ".csv"):
        raise InvalidInput(
            f"{place} ends in {place.suffix or 'nothing'!r}; predictions are written to .parquet or .csv"
        )
    if not place.parent.is_dir():
        raise InvalidInput(f"there is no directory {place.parent} to write {place.name} to")
    if place.suffix == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise MissingExtra("pyarrow", "tables", "writing parquet (csv needs nothing)") from error


def write_predictions(predictions: Sequence[Prediction], path: str | os.PathLike[str]) -> None:
    """One row per prediction, in order; the file appears whole or not at all."""
    check_target(path)
    columns = {item.name: [getattr(prediction, item.name) for prediction in predictions] for item in fields(Prediction)}
    raw = _to_parquet(columns) if Path(path).suffix == ".parquet" else _to_csv(predictions)
    write_whole(path, raw)


def _to_csv(predictions: Sequence[Prediction]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=[item.name for item in fields(Prediction)], lineterminator="\n")
    writer.writeheader()
    for prediction in predictions:
        writer.writerow({name: _cell(value) for name, value in asdict(prediction).items()})
    return text.getvalue().encode()


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.{_PLACES}g}" if isinstance(value, float) else value


def _to_parquet(columns: dict[str, list[object]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    kinds = {
        "case_id": pyarrow.string(),
        "status": pyarrow.string(),
        "reason": pyarrow.string(),
        "fits": pyarrow.bool_(),
    }
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.float64())) for name in columns])
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), sink, compression="zstd")
    return sink.getvalue()
