"""argv to a command: one module per command, imported only when it is asked for."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

COMMANDS = {
    "forecast": "Forecast step time, job time, memory and cost of a training job.",
    "can": "Say which GPUs can train a model: whole, by LoRA or by QLoRA.",
    "fit": "Find the largest batch and sequence that fit, and what to change first.",
    "capture": "Record the training step of a model as a graph.",
    "config": "Show what configurations of other projects say, key by key.",
    "catalog": "List and show known devices, links, clusters, prices and workloads.",
    "plan": "Choose cluster and parallelism for a deadline, a budget or speed.",
    "advise": "Say in sentences what dominates a job, whether it fits and what would help.",
    "batch": "Answer a whole table of cases.",
    "accuracy": "Score what forecast would have said about measured runs.",
    "profile": "Measure operators and steps on this machine.",
    "design": "Choose the few measurements that are worth their price.",
    "compare": "Lay a profiler trace beside the forecast of its job.",
    "calibrate": "Measure this machine, so that forecasts for it become sharp.",
    "learn": "Learn from measured runs: a calibration that every command takes.",
    "resources": "Forecast how busy GPU, memory and network are.",
    "schedule": "Simulate a cluster whose scheduler uses forecasts.",
    "similar": "Find the known workloads most like this one, and how they behaved.",
    "store": "Keep, list and export measurements.",
    "serve": "Answer forecasts over HTTP, with a page.",
    "token": "Add, list or remove the tokens of a service.",
}
"""Every command and its line in the help. A command lives in the module of its name, as a function of its name."""

PANELS = {
    "Ask": ("forecast", "can", "fit", "plan", "advise", "schedule"),
    "Models and machines": ("capture", "catalog", "similar"),
    "Measure and learn": ("compare", "calibrate", "profile", "design", "learn", "store"),
    "Many questions": ("batch", "accuracy", "serve", "token"),
}
"""Where the help lists a command."""
QUESTIONS = (
    (
        "How long will it take, what will it cost, does it fit?",
        "traincast forecast llama-3-8b --gpus 8xh100 --tokens 15B",
    ),
    ("What is the largest batch and the longest sequence that fit?", "traincast fit gpt2-xl --gpus 1xa100-40g"),
    (
        "Which GPUs and which plan are fastest, cheapest, greenest?",
        "traincast plan llama-3-8b --all --gpus 8..16 --tokens 15B",
    ),
    (
        "What slows my own model down, and what would help?",
        "traincast advise my_model.py:build --gpus 4xa100-80g --batch 16",
    ),
    ("Was the forecast right?", "traincast compare trace.json my_model.py:build --gpus 1xa100-80g --batch 16"),
)
"""What a newcomer may ask, and the words for it."""
_COMPLETION = "_TRAINCAST_COMPLETE"
HELP = ("-h", "--help")
EVERY_OPTION = "_TRAINCAST_EVERY_OPTION"
"""Set where the help lists every option, not only those that matter most."""


def run(arguments: Sequence[str]) -> int:
    """Run one command; usage errors and TraincastError rise to the main program."""
    words, completing = list(arguments), _COMPLETION in os.environ
    for place in range(len(words) - 1):
        if words[place] in HELP and words[place + 1] == "all":
            del words[place + 1]
            os.environ[EVERY_OPTION] = "1"
            break
    if not words and not completing:
        sys.stdout.write(describe_questions())
        return 0
    wanted = set(COMMANDS) if completing else {next((word for word in words if not word.startswith("-")), "")}
    command = typer.main.get_command(make_app(wanted=wanted))
    code = command.main(args=words, prog_name="traincast", standalone_mode=False)
    return code if isinstance(code, int) else 0


def describe_questions() -> str:
    """Five questions that one can ask, for who types the name of the program alone."""
    lines = ["traincast forecasts training before it runs. Five questions to start with:", ""]
    for question, command in QUESTIONS:
        lines += [f"  {question}", f"    {command}", ""]
    lines += ["All commands: traincast --help. Known models and devices: traincast catalog."]
    return "\n".join(lines) + "\n"


def make_app(*, wanted: set[str] | None = None) -> typer.Typer:
    """The application with the wanted commands loaded (None: all) and the others present by name only."""
    app = typer.Typer(
        name="traincast",
        help="Forecasts the time, memory, resource use and cost of distributed deep-learning training before it runs.",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_top)
    for name, summary in COMMANDS.items():
        if importlib.util.find_spec(f"traincast.cli.{name}") is None:
            continue
        if wanted is None or name in wanted:
            function = _load(name)
            hidden = getattr(function, "num_hidden", 0)
            more = f"{hidden} more options: traincast {name} --help all" if hidden else None
            app.command(name, rich_help_panel=_panel_of(name), epilog=more)(function)
        else:
            app.command(name, help=summary, rich_help_panel=_panel_of(name))(_not_loaded)
    return app


def _panel_of(name: str) -> str:
    return next((panel for panel, names in PANELS.items() if name in names), "More")


def _load(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(importlib.import_module(f"traincast.cli.{name}"), name)
    return function


def _not_loaded() -> None:
    """Stands in for a command that this call does not run."""


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"traincast {version('traincast')}")
        raise typer.Exit


def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass
