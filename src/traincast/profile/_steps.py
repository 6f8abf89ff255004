"""Whole training steps: an architecture of the corpus or a user's own model to something that runs again and again."""

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from traincast.errors import InvalidInput, UnknownName
from traincast.noun import noun
from traincast.profile._architectures import build_architecture
from traincast.profile._operators import OPTIMIZERS, find_optimizer
from traincast.profile._protocol import Running
from traincast.profile._resources import sampling
from traincast.spec import Attr, Experiment

BATCH_ARGUMENTS = ("batch_size", "batch")


@noun
class StepWorkload:
    """A model with the arguments of one step."""

    model: nn.Module
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any]
    loss: Callable[[Any], torch.Tensor] | None = None


def step_experiment(name: str, *, batch: int, optimizer: str = "adamw", **others: Attr) -> Experiment:
    """A step on one device; `others` say what else differs: num_ranks, strategy, network ..."""
    if optimizer not in OPTIMIZERS:
        raise UnknownName("optimizer", optimizer, OPTIMIZERS)
    return Experiment(subject="step", name=name, attrs={"batch": batch, "optimizer": optimizer, **others})


def prepare_step(experiment: Experiment, *, device: str = "cpu") -> Running:
    workload = load_workload(experiment.name, batch=int(experiment.attrs["batch"]), device=device)
    run = training_step(workload, make_optimizer(experiment, workload.model))

    def sample() -> dict[str, float]:
        with sampling(interval_s=0.005) as samples:
            for _ in range(3):
                run()
        return samples.summary()

    return Running(run=run, settle=torch.cuda.synchronize if device == "cuda" else lambda: None, resources=sample)


def make_optimizer(experiment: Experiment, model: nn.Module) -> torch.optim.Optimizer:
    kind, options = find_optimizer(torch, str(experiment.attrs.get("optimizer", "adamw")))
    made: torch.optim.Optimizer = kind(model.parameters(), **options)
    return made


def training_step(workload: StepWorkload, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Forward, backward and update, as one call."""

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(workload).backward()
        optimizer.step()

    return run


def loss_of(workload: StepWorkload) -> torch.Tensor:
    """The loss by the workload's own rule, as the model returns it, or the mean square of a plain output."""
    output = workload.model(*workload.arguments, **workload.named)
    if workload.loss is not None:
        return workload.loss(output)
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if found is None and isinstance(output, (tuple, list)):
        found = output[0]
    if found is None:
        found = output
    if not isinstance(found, torch.Tensor) or not found.requires_grad:
        raise InvalidInput(
            f"{type(workload.model).__name__} returns {type(output).__name__} without a loss to differentiate; "
            "return a loss, or let build() return (model, inputs, loss)"
        )
    return found if found.numel() == 1 else found.float().square().mean()


def load_workload(name: str, *, batch: int, device: str = "cpu") -> StepWorkload:
    """'resnet(depth=2,width=16)' of the corpus, or 'my_file.py:build' of the user."""
    if ".py:" in name:
        workload = _call_builder(_find_builder(name), name=name, batch=batch)
    else:
        model, inputs = build_architecture(name)
        workload = StepWorkload(model=model, arguments=inputs(batch), named={})
    workload.model.to(device)
    return StepWorkload(
        model=workload.model, arguments=_moved(workload.arguments, device), named=_moved(workload.named, device),
        loss=workload.loss,
    )  # fmt: skip


def _find_builder(name: str) -> Callable[..., Any]:
    text, _, function = name.rpartition(":")
    path = Path(text)
    if not path.is_file():
        raise InvalidInput(f"there is no file {text}; write FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(f"traincast_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{text} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidInput(f"{text} fails when it is imported: {type(error).__name__}: {error}") from error
    found = getattr(module, function, None)
    if not callable(found):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise UnknownName(f"function in {text}", function, functions)
    return found  # type: ignore[no-any-return]


def _call_builder(build: Callable[..., Any], *, name: str, batch: int) -> StepWorkload:
    accepted = inspect.signature(build).parameters
    options = {key: batch for key in BATCH_ARGUMENTS if key in accepted}
    built = build(**options)
    if not (isinstance(built, tuple) and len(built) in (2, 3) and isinstance(built[0], nn.Module)):
        raise InvalidInput(
            f"{name} returned {type(built).__name__}; it must return (model, inputs) or (model, inputs, loss)"
        )
    model, inputs, *loss = built
    arguments = () if isinstance(inputs, Mapping) else tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    return StepWorkload(model=model, arguments=arguments, named=named, loss=loss[0] if loss else None)


def _moved(values: Any, device: str) -> Any:
    if isinstance(values, torch.Tensor):
        return values.to(device)
    if isinstance(values, Mapping):
        return {key: _moved(value, device) for key, value in values.items()}
    if isinstance(values, (tuple, list)):
        return type(values)(_moved(value, device) for value in values)
    return values
