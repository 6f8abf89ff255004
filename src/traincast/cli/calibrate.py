"""`traincast calibrate`: measures this machine for a few minutes and keeps what was learned."""

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traincast.cli.groups import takes_groups
from traincast.cli.options import Json
from traincast.noun import noun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traincast.learn import CalibrationCandidates, CalibrationLoad, Outcome
    from traincast.profile import Subject


@noun
class DesignOptions:
    """What may be measured, what is kept back, and when it is enough."""

    width: Annotated[
        float, typer.Option("--width", help="Stop earlier once the 90% interval of a step is this narrow, such as 0.1.")
    ] = 0.0
    models: Annotated[
        int, typer.Option("--models", help="Architectures whose operators and steps may be measured.")
    ] = 48
    held_out: Annotated[int, typer.Option("--held-out", help="Architectures kept back to check the result.")] = 20
    design: Annotated[
        str,
        typer.Option(
            "--design",
            "--method",
            help="How to choose: d-optimal, targeted (A-optimal for whole steps); random or grid to compare with.",
        ),
    ] = "d-optimal"
    device: Annotated[str, typer.Option("--device", "-d", help="What is measured: cpu (one core) or cuda.")] = "cpu"


@takes_groups
def calibrate(
    out: Annotated[Path, typer.Option("--out", "-o", help="File that keeps the calibration.")] = Path(
        "calibration.json"
    ),
    name: Annotated[str, typer.Option("--name", "-n", help="Of the calibration.")] = "this-machine",
    *,
    budget: Annotated[str, typer.Option("--budget", help="Time to spend on measuring, such as 3min.")] = "3min",
    store: Annotated[Path, typer.Option("--store", "-s", help="File that keeps the measurements.")] = Path(
        "measurements.db"
    ),
    choice: DesignOptions,
    core: Annotated[int | None, typer.Option("--core", help="Pin to this core.")] = None,
    gemm: Annotated[
        list[str] | None,
        typer.Option(
            "--gemm",
            help="A matmul that you measured on a GPU: 'h100-sxm-80g bf16 2048x16384x4096 0.35ms'; again for more. Nothing is "
            "measured here then; the GPU's matmuls are set to that level.",
        ),
    ] = None,
    gemms: Annotated[
        Path | None,
        typer.Option("--gemms", help="The same from a table (CSV): device, dtype, m, n, k, time_s."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure this machine for a few minutes, so that forecasts for it become sharp; or tell it one matmul of a GPU.

    What to measure is chosen by optimal design, information per second, and planned again as results come in. The error is
    shown before and after, on steps of models that were not fitted.
    """
    if gemm or gemms is not None:
        _tell_levels(gemm or [], gemms, name=name, out=out, json=json)
        return
    _tell("recording the steps of our architectures")
    from traincast.learn import corpus_candidates, save_calibration
    from traincast.profile import describe
    from traincast.spec import Calibration
    from traincast.units import parse_seconds

    budget_s = parse_seconds(budget)
    describe(device=choice.device)
    # A GPU that is given what keeps one core busy only waits for its host.
    batches = (2, 4, 8, 16) if choice.device == "cpu" else (64, 128, 256, 512)
    candidates = corpus_candidates(num_models=choice.models, num_held_out=choice.held_out, batches=batches)
    wanted = {"name": name, "budget_s": budget_s, "target_width": choice.width, "method": choice.design}
    outcome = _measure(candidates, store, device=choice.device, core=core, **wanted)
    save_calibration(Calibration(name=name, machine=outcome.calibration, sources=(str(store),)), out)
    _say_all(outcome, name=name, out=out, json=json)


def _say_all(outcome: "Outcome", *, name: str, out: Path, json: bool) -> None:
    from traincast.cli.output import lead_to, say
    from traincast.files import encode
    from traincast.report import format_json

    if json:
        say(format_json({
            "calibration": str(out), "name": name, "measuring_s": outcome.measuring_s,
            "num_operators": outcome.num_operators, "num_steps": outcome.num_steps, "before": encode(outcome.before),
            "after": encode(outcome.after), "interval_width": outcome.width, "unmeasured": list(outcome.unmeasured),
        }))  # fmt: skip
        return
    _say_outcome(outcome)
    for line in outcome.unmeasured[:5]:
        say(f"not measured: {line}")
    say(f"kept in {out}; use it with --calibration {out}")
    lead_to("forecast", "resnet18", "--device", "cpu", "--batch", "2", "--calibration", out)


def _measure(
    candidates: "CalibrationCandidates",
    store: Path,
    *,
    device: str,
    core: int | None,
    **wanted: Any,
) -> "Outcome":
    """Calibrate on one core, held steady, or on the GPU that it drives."""
    import os

    from traincast.learn import MeasuringSetup, calibrate_machine
    from traincast.profile import Protocol, Steadiness, describe, make_canary, steady
    from traincast.store import Store

    chosen = core if core is not None else max(os.sched_getaffinity(0))
    steadiness = Steadiness(cores=(chosen,), num_threads=1)
    with steady(steadiness), Store(store) as kept:
        setup = MeasuringSetup(
            store=kept, environment=describe(device=device, steadiness=steadiness),
            prepare=functools.partial(_subjects, device=device),
            protocol=Protocol(num_rounds=3, block_s=0.03, warm_up_s=0.005), canary=make_canary() if device == "cpu" else None,
        )  # fmt: skip
        return calibrate_machine(candidates, setup, say=_tell, **wanted)


def _say_outcome(outcome: "Outcome") -> None:
    from traincast.cli.output import say
    from traincast.units import show_seconds

    before, after = outcome.before, outcome.after
    say(
        f"{outcome.num_operators} operators and {outcome.num_steps} steps in {show_seconds(outcome.measuring_s)} of measuring"
    )
    say(f"error on {after.num_cases} steps of models that were not fitted:")
    for label, score in (("before", before), ("after", after)):
        held = "" if score.coverage is None else f"   inside the 90% interval {score.coverage:4.0%}"
        say(f"  {label:7} mean {score.mean:6.1%}   median {score.median:6.1%}   worst {score.worst:6.1%}{held}")
    say(f"typical 90% interval of a step: ±{outcome.width:.0%}")


def _tell_levels(texts: "Sequence[str]", table: Path | None, *, name: str, out: Path, json: bool) -> None:
    """Keeps how far products of devices are from what their data sheets make us expect."""
    from traincast.cli.output import lead_to, say
    from traincast.files import encode
    from traincast.learn import learn_levels, parse_product, read_products, save_calibration
    from traincast.report import format_json
    from traincast.spec import Calibration

    products = [parse_product(text) for text in texts] + (read_products(table) if table is not None else [])
    levels = learn_levels(products)
    sources = (str(table),) if table is not None else ()
    save_calibration(Calibration(name=name, devices=levels, sources=sources), out)
    if json:
        say(format_json({"calibration": str(out), "name": name, "devices": encode(levels)}))
        return
    for level in levels:
        for dtype, ratio in level.products.items():
            say(f"{level.device}: matmuls in {dtype} take {ratio:.2f} times as long as its data sheet makes us expect")
    say(f"kept in {out}; use it with --calibration {out}")
    lead_to("forecast", "llama-3-8b", "--gpus", f"8x{levels[0].device}", "--calibration", out)


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _subjects(loads: "Sequence[CalibrationLoad]", *, device: str) -> "list[Subject]":
    from traincast.profile import subject_of

    return [subject_of(load.experiment, device=device) for load in loads]
