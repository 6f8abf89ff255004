"""Options by which every command takes what was learnt: a calibration by name or file, or a table of measured runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traincast.cost import CostModel
    from traincast.spec import Calibration, MeasuredRun

CalibrationOption = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        help="What `traincast calibrate` or `traincast learn` made, by name or file.",
        rich_help_panel="Learned",
        show_default=False,
    ),
]
GivenOption = Annotated[
    Path | None,
    typer.Option(
        "--given",
        help="Measured runs to learn from first: a table of cases, or a store of watched trainings.",
        rich_help_panel="Learned",
        show_default=False,
    ),
]


def load_learned(
    calibration: "str | Calibration | None",
    given: Path | None,
    *,
    filed: "str | Calibration | None" = None,
) -> "Calibration | None":
    """What the options name, else what the job file does."""
    from traincast.errors import InvalidInput

    if calibration is not None and given is not None:
        raise InvalidInput("--calibration and --given both say what was learned; give one of them")
    if given is None:
        from traincast.files import read_calibration

        return read_calibration(filed if calibration is None else calibration)
    from traincast.learn import learn

    return learn(read_measured_runs([given]), name=given.name, sources=(str(given),))


def read_measured_runs(paths: "Sequence[Path]") -> "list[MeasuredRun]":
    """Of tables of cases and of stores, by the suffix of the file."""
    from traincast.accuracy import read_rows, read_runs
    from traincast.errors import InvalidInput

    runs: list[MeasuredRun] = []
    for path in paths:
        if path.suffix == ".db":
            runs += _read_store(path)
        else:
            runs += read_runs(read_rows(path))
    if not runs:
        raise InvalidInput(
            f"{', '.join(map(str, paths))} holds no run to learn from: a row needs measured_step_s, quality clean or none, and "
            "a workload, device and plan that a forecast can be made for"
        )
    return runs


def _read_store(path: Path) -> "list[MeasuredRun]":
    from traincast.learn import read_stored
    from traincast.store import Store

    with Store(path, create=False) as kept:
        return read_stored(list(kept.measurements()), store=path)


def costs_of(calibration: "Calibration | None") -> "CostModel | None":
    """The cost model of a machine that was calibrated; None where it was not."""
    if calibration is None or calibration.machine is None:
        return None
    from traincast.cost import Calibrated, Pricing

    return Calibrated(rates=calibration.machine, others=Pricing().estimate)
