"""An optimizer, run on one fake parameter of each shape, to the state it keeps and the work of its update.

No list of algorithms is needed: whatever class it is, its own `step` runs twice on tensors without memory. The first run makes
the state; the second is counted.
"""

import copy
import inspect
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from traincast.capture._calls import NO_WORK, arithmetic_dtype, flat_tensors, name_of, read_call
from traincast.capture._libraries import like_optimizer
from traincast.capture._operators import DTYPES, Call, Work, describe, dtype_name
from traincast.capture._optimizers import UPDATES, Update
from traincast.errors import CaptureFailed, UnknownName
from traincast.noun import noun

_FOREACH = "aten._foreach_"
_FOREACH_FLOP = {
    "lerp": 2, "addcmul": 2, "addcdiv": 2, "sqrt": 4, "rsqrt": 4, "pow": 4, "exp": 4, "norm": 2, "copy": 0, "zero": 0,
}  # fmt: skip
"""Per element; every other multi-tensor operation counts one."""
_MAX_PERIOD = 20
_OWN_KINDS = ("matmul", "conv", "other", "sort")
"""Work of an update that is no pass over the elements and becomes an operation of its own."""


@noun
class State:
    """A tensor that an optimizer keeps for one parameter."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@noun
class Member:
    """A trained parameter, its gradient and what is kept for it."""

    name: str
    parameter: Any
    states: tuple[State, ...]


@noun
class Updated:
    """The update of one group of parameters of one dtype."""

    algorithm: str
    members: tuple[Member, ...]
    implementation: str
    bytes_read: float
    bytes_written: float
    flop: float | None
    passes: float
    """Kernels of one pass over a list of tensors; per tensor where the optimizer goes through them one by one."""
    is_per_tensor: bool
    temporary_bytes: float
    products: tuple[tuple[Work, str, int], ...] = ()
    """(work, name, how often) beyond passes over the elements: the products of a preconditioner."""


@dataclass(slots=True)
class _Trial:
    """What one step did to one parameter."""

    states: tuple[State, ...] = ()
    bytes_read: float = 0.0
    bytes_written: float = 0.0
    flop: float = 0.0
    passes: int = 0
    uses_foreach: bool = False
    peak_bytes: float = 0.0
    live_bytes: float = 0.0
    products: list[tuple[Work, str]] | None = None


class _Tally(TorchDispatchMode):  # type: ignore[misc]
    """Adds up what the operations of an optimizer step touch."""

    def __init__(self) -> None:
        super().__init__()
        self.trial = _Trial(products=[])
        self._watched: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func.namespace == "prim" or name_of(func) in NO_WORK:
            return output
        call = read_call(func, args, kwargs, output)
        if call is not None:
            self._add(call)
            if not call.mutates:
                self._watch(output)
        return output

    def _add(self, call: Call) -> None:
        trial = self.trial
        if not any(tensor.dim() for tensor in (*call.inputs, *call.outputs)):
            return
        if call.name.startswith(_FOREACH):
            trial.uses_foreach = True
            stem = call.name.removeprefix(_FOREACH).rstrip("_")
            scales = stem in ("add", "sub") and call.get("alpha") not in (None, 1)
            trial.flop += (2 if scales else _FOREACH_FLOP.get(stem, 1)) * _numel(call.outputs)
            trial.bytes_read += _size(call.inputs) if stem != "copy" else _size(call.inputs) - _size(call.outputs)
            trial.bytes_written += _size(call.outputs)
            trial.passes += 1
            return
        for work in describe(call):
            if work.kind in _OWN_KINDS and trial.products is not None:
                trial.products.append((work, call.name + work.suffix))
                continue
            trial.bytes_read += work.bytes_read
            trial.bytes_written += work.bytes_written
            trial.flop += work.flop or 0.0
            trial.passes += work.num_kernels

    def _watch(self, output: Any) -> None:
        """Temporaries live until the optimizer drops them."""
        trial = self.trial
        for tensor in flat_tensors((output,)):
            if not tensor.dim():
                continue
            storage = tensor.untyped_storage()
            key, size = storage._cdata, float(storage.nbytes())
            if key in self._watched:
                continue

            def forget(_: Any, key: int = key, size: float = size) -> None:
                if self._watched.pop(key, None) is not None:
                    trial.live_bytes -= size

            self._watched[key] = weakref.ref(storage, forget)
            trial.live_bytes += size
            trial.peak_bytes = max(trial.peak_bytes, trial.live_bytes)


def _numel(tensors: Sequence[Any]) -> int:
    return sum(tensor.numel() for tensor in tensors if tensor.dim())


def _size(tensors: Sequence[Any]) -> float:
    """A tensor that is given twice (a gradient that is squared) is read once."""
    different = {id(tensor): tensor for tensor in tensors if tensor.dim()}
    return float(sum(tensor.numel() * tensor.element_size() for tensor in different.values()))


def find_updates(
    optimizer: Any, trained: Sequence[tuple[str, Any]], *, module: nn.Module, originals: Mapping[int, int],
    implementation: str, assume: Callable[[str], None],
) -> list[Updated]:  # fmt: skip
    """The updates of all trained parameters.

    `optimizer` is a name, a torch optimizer, a class of one, a function that makes one from the parameters (or from the model,
    if its parameter is called `model`), or a list of these.
    """
    if isinstance(optimizer, (list, tuple)):
        return [
            update
            for part in optimizer
            for update in find_updates(
                part, trained, module=module, originals=originals, implementation=implementation, assume=assume
            )
        ]
    if isinstance(optimizer, str):
        named = _by_name(optimizer, trained, implementation, assume)
        if named is not None:
            return named
    made = optimizer if isinstance(optimizer, torch.optim.Optimizer) else _build(optimizer, trained, module)
    known = like_optimizer(made)
    if known is not None:
        assume(f"{type(made).__name__} is counted as a fused {known}")
        numbers = _match(made, trained, module=module, originals=originals, assume=assume)
        own = [(name, parameter) for name, parameter in trained if id(parameter) in numbers]
        return _by_name(known, own, "fused", assume) or []
    if isinstance(made, torch.optim.SparseAdam):
        return _by_name("sparseadam", trained, implementation, assume) or []
    if isinstance(made, torch.optim.LBFGS):
        return _with_history(trained, int(made.param_groups[0]["history_size"]), assume)
    return list(_by_running(made, trained, module=module, originals=originals, given=implementation, assume=assume))


def _by_name(
    name: str, trained: Sequence[tuple[str, Any]], implementation: str, assume: Callable[[str], None]
) -> list[Updated] | None:
    """Algorithms that are counted without running them; None where a class of torch.optim has that name."""
    key = name.lower().replace("-", "").replace("_", "")
    if key == "muon":
        hidden = [(path, p) for path, p in trained if p.dim() == 2 and not _is_outer(path)]
        chosen = {id(p) for _, p in hidden}
        rest = [(path, p) for path, p in trained if id(p) not in chosen]
        assume("muon updates the hidden matrices; adamw the embeddings, the head and what is no matrix")
        updates = _by_name("adamw", rest, implementation, assume) or []
        if hidden:
            made = torch.optim.Muon([p for _, p in hidden])
            updates += _by_running(made, hidden, module=None, originals={}, given=implementation, assume=assume)
        return updates
    if key == "lbfgs":
        return _with_history(trained, UPDATES["lbfgs"].history, assume)
    # Adam over the touched rows: the gradients are cut to them where the graph is made.
    update = UPDATES["adam"] if key == "sparseadam" else UPDATES.get(name.lower()) or UPDATES.get(key)
    if update is None:
        return None
    groups: dict[Any, list[tuple[str, Any]]] = defaultdict(list)
    for path, parameter in trained:
        groups[parameter.dtype].append((path, parameter))
    return [_tabled(name.lower(), update, members, implementation) for members in groups.values()]


def _with_history(trained: Sequence[tuple[str, Any]], length: int, assume: Callable[[str], None]) -> list[Updated]:
    """L-BFGS in its steady state; its own step would run the model again, as often as the line asks."""
    assume(f"L-BFGS keeps {length} past steps and evaluates the model once per step")
    update = replace(
        UPDATES["lbfgs"], history=length, passes=4 * length, reads=8 * length, writes=2 * length, flop=8 * length
    )
    return [_tabled("lbfgs", update, list(trained), "foreach")]


def _is_outer(path: str) -> bool:
    words = ("embed", "lm_head", "wte", "wpe", "head.", "classifier", "output.weight")
    return any(word in path.lower() for word in words)


def _tabled(algorithm: str, update: Update, members: Sequence[tuple[str, Any]], implementation: str) -> Updated:
    is_fused = implementation == "fused" or update.is_fused
    numel = sum(parameter.numel() for _, parameter in members)
    item = members[0][1].element_size()
    state_bytes = 0.0

    def states(parameter: Any) -> tuple[State, ...]:
        kept = update.state_shapes(tuple(parameter.shape), DTYPES[parameter.dtype])
        return tuple(State(name=name, shape=shape, dtype=dtype) for name, shape, dtype in kept)

    made = tuple(Member(name=name, parameter=p, states=states(p)) for name, p in members)
    if update.is_fused:
        state_bytes = sum(_state_bytes(state) for member in made for state in member.states)
        reads, writes = 2.0 * numel * item + state_bytes, numel * item + state_bytes
    else:
        reads = (update.fused_reads if is_fused else update.reads) * numel * item
        writes = (update.fused_writes if is_fused else update.writes) * numel * item
    return Updated(
        algorithm=algorithm, members=made, implementation="fused" if is_fused else implementation, bytes_read=float(reads),
        bytes_written=float(writes), flop=float(update.flop * numel), passes=1 if is_fused else update.passes,
        is_per_tensor=update.is_fused, temporary_bytes=float(numel * item) if update.has_temporary and not is_fused else 0.0,
    )  # fmt: skip


def _state_bytes(state: State) -> float:
    from traincast.units import DTYPE_BYTES

    count = 1
    for size in state.shape:
        count *= size
    return float(count * DTYPE_BYTES[state.dtype])


def _build(optimizer: Any, trained: Sequence[tuple[str, Any]], module: nn.Module) -> Any:
    parameters = [parameter for _, parameter in trained]
    if isinstance(optimizer, str):
        known = {
            name.lower(): item for name, item in vars(torch.optim).items()
            if inspect.isclass(item) and issubclass(item, torch.optim.Optimizer) and item is not torch.optim.Optimizer
        }  # fmt: skip
        found = known.get(optimizer.lower().replace("-", "").replace("_", ""))
        if found is None:
            raise UnknownName("optimizer", optimizer, dict.fromkeys([*UPDATES, *known]))
        built: Any = found
        return built(parameters)
    if not callable(optimizer):
        raise CaptureFailed(
            f"the optimizer is a {type(optimizer).__name__}; a name, a torch optimizer, its class or a function that makes one "
            "is needed"
        )
    names = [] if inspect.isclass(optimizer) else list(inspect.signature(optimizer).parameters)
    made = optimizer(module) if names[:1] in (["model"], ["module"]) else optimizer(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        raise CaptureFailed(f"the optimizer function returned a {type(made).__name__}; a torch optimizer is needed")
    return made


def _by_running(
    optimizer: Any, trained: Sequence[tuple[str, Any]], *, module: nn.Module | None, originals: Mapping[int, int], given: str,
    assume: Callable[[str], None],
) -> Iterator[Updated]:  # fmt: skip
    numbers = _match(optimizer, trained, module=module, originals=originals, assume=assume)
    grouped: dict[tuple[int, Any], list[tuple[str, Any]]] = defaultdict(list)
    for name, parameter in trained:
        if id(parameter) in numbers:
            grouped[numbers[id(parameter)], parameter.dtype].append((name, parameter))
    for (number, _), members in grouped.items():
        group = optimizer.param_groups[number]
        implementation = "fused" if group.get("fused") else given
        trials: dict[tuple[Any, ...], _Trial] = {}
        for _, parameter in members:
            key = (tuple(parameter.shape), parameter.grad.dtype)
            if key not in trials:
                trials[key] = _try(optimizer, group, parameter)
        yield _updated(optimizer, group, members, trials, implementation)


def _updated(
    optimizer: Any, group: Any, members: Sequence[tuple[str, Any]], trials: Mapping[tuple[Any, ...], _Trial], how: str
) -> Updated:
    of = [trials[tuple(parameter.shape), parameter.grad.dtype] for _, parameter in members]
    made = tuple(
        Member(name=name, parameter=parameter, states=trial.states)
        for (name, parameter), trial in zip(members, of, strict=True)
    )
    algorithm = type(optimizer).__name__.lower()
    if algorithm == "sgd" and group.get("momentum", 0):
        algorithm = "momentum"
    uses_foreach = any(trial.uses_foreach for trial in of)
    reads, writes = sum(t.bytes_read for t in of), sum(t.bytes_written for t in of)
    temporary = [trial.peak_bytes for trial in of]
    if how == "fused":
        size = sum(p.numel() * p.element_size() for _, p in members)
        kept = sum(_state_bytes(state) for member in made for state in member.states)
        reads, writes, temporary = 2.0 * size + kept, size + kept, [0.0]
    return Updated(
        algorithm=algorithm, members=made, implementation=how, bytes_read=float(reads), bytes_written=float(writes),
        flop=sum(trial.flop for trial in of),
        passes=1 if how == "fused" else max((trial.passes for trial in of), default=0),
        is_per_tensor=how != "fused" and not uses_foreach,
        temporary_bytes=float(sum(temporary) if uses_foreach else max(temporary, default=0.0)),
        products=_count_products(of),
    )  # fmt: skip


def _count_products(trials: Sequence[_Trial]) -> tuple[tuple[Work, str, int], ...]:
    """Each product of the update with how often it runs."""
    counted: dict[int, tuple[Work, str, int]] = {}
    for trial in trials:
        for work, name in trial.products or ():
            before = counted.get(id(work))
            counted[id(work)] = (work, name, 1 if before is None else before[2] + 1)
    return tuple(counted.values())


def _match_shapes(listed: Sequence[tuple[int, Any]], trained: Sequence[tuple[str, Any]]) -> tuple[dict[int, int], bool]:
    """The group of each parameter by its shape alone, and whether the optimizer has others besides."""
    by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, p in listed:
        by_shape[tuple(p.shape)].append(number)
    matched = {}
    for _, parameter in trained:
        left = by_shape[tuple(parameter.shape)]
        if left:
            matched[id(parameter)] = left.pop(0)
    return matched, any(by_shape.values())


def _match(
    optimizer: Any, trained: Sequence[tuple[str, Any]], *, module: nn.Module | None, originals: Mapping[int, int],
    assume: Callable[[str], None],
) -> dict[int, int]:  # fmt: skip
    """The group of each trained parameter, by identity, else by order and shape."""
    wanted = {id(parameter) for _, parameter in trained}
    listed = [(number, p) for number, group in enumerate(optimizer.param_groups) for p in group["params"]]
    numbers = {originals.get(id(p), id(p)): number for number, p in listed}
    found = {key: number for key, number in numbers.items() if key in wanted}
    if found or not listed:
        return found
    own = list(module.parameters()) if module is not None else []
    for candidates in (own, [p for p in own if p.requires_grad]):
        if [tuple(p.shape) for _, p in listed] == [tuple(p.shape) for p in candidates]:
            assume(
                "the optimizer was built over another instance of the model; its parameters are matched by their order"
            )
            return {id(p): number for p, (number, _) in zip(candidates, listed, strict=True)}
    matched, left_over = _match_shapes(listed, trained)
    if not matched or left_over:
        raise CaptureFailed(
            f"{type(optimizer).__name__} updates none of the model's parameters: it was built over others; "
            "give a function that makes it from the parameters: optimizer = lambda parameters: ..."
        )
    assume("the optimizer was built over another instance of the model; its parameters are matched by their shapes")
    return matched


def _try(optimizer: Any, group: Any, parameter: Any) -> _Trial:
    """One parameter through the optimizer's own step; the state of the steady step is kept."""
    twin = _twin(optimizer, group, parameter)
    period = _period(group)
    tallies = []
    try:
        with torch.no_grad():
            _step(twin)
            for _ in range(period):
                with _Tally() as tally:
                    _step(twin)
                tallies.append(tally.trial)
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise CaptureFailed(
            f"the optimizer {type(optimizer).__name__} cannot run on a parameter of shape {tuple(parameter.shape)}: {text}; "
            "name one that is like it, for instance optimizer='adamw'"
        ) from error
    last = tallies[-1]
    products = [item for trial in tallies for item in trial.products or ()]
    return _Trial(
        states=tuple(_states(twin, parameter)),
        bytes_read=sum(trial.bytes_read for trial in tallies) / period,
        bytes_written=sum(trial.bytes_written for trial in tallies) / period,
        flop=sum(trial.flop for trial in tallies) / period,
        passes=last.passes,
        uses_foreach=any(trial.uses_foreach for trial in tallies),
        peak_bytes=max(trial.peak_bytes for trial in tallies),
        products=products[:: max(1, period)] if period > 1 else products,
    )


def _period(group: Any) -> int:
    """Steps after which a preconditioner is made anew; the work of one such round is averaged."""
    periods = [
        int(value) for key, value in group.items() if "freq" in str(key) and isinstance(value, int) and value > 0
    ]
    return min(_MAX_PERIOD, max(periods, default=1))


def _step(optimizer: Any) -> None:
    takes = inspect.signature(optimizer.step).parameters.get("closure")
    if takes is not None and takes.default is inspect.Parameter.empty:
        optimizer.step(lambda: torch.zeros(()))
    else:
        optimizer.step()


def _twin(optimizer: Any, group: Any, parameter: Any) -> Any:
    """The same optimizer over one fake parameter, without state and without hooks."""
    twin = object.__new__(type(optimizer))
    for key, value in vars(optimizer).items():
        if isinstance(value, torch.optim.Optimizer) and value is not optimizer:
            twin.__dict__[key] = _twin(value, value.param_groups[0], parameter)
        elif isinstance(value, OrderedDict) and "hooks" in key:
            twin.__dict__[key] = OrderedDict()
        else:
            twin.__dict__[key] = value
    options = {key: copy.copy(value) for key, value in group.items() if key not in ("params", "param_names")}
    if "foreach" in options and options["foreach"] is None:
        # What an accelerator does by itself; on a CPU the default goes tensor by tensor.
        options["foreach"] = True
    if options.get("fused"):
        options["fused"] = None
        options["foreach"] = True
    if "capturable" in options:
        options["capturable"] = False
    twin.param_groups = [{**options, "params": [parameter]}]
    twin.state = defaultdict(dict)
    return twin


def _states(optimizer: Any, parameter: Any) -> Iterator[State]:
    """Counters without dims stay on the host and are left out."""
    for owner in (optimizer, *(v for v in vars(optimizer).values() if isinstance(v, torch.optim.Optimizer))):
        for key, value in _named(owner.state.get(parameter, {})):
            if value.dim() and value.numel():
                yield State(name=key, shape=tuple(int(n) for n in value.shape), dtype=dtype_name(value))


def _named(kept: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    items = kept.items() if isinstance(kept, Mapping) else enumerate(kept)
    for key, value in items:
        name = f"{prefix}_{key}" if prefix else str(key)
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (Mapping, list, tuple)):
            yield from _named(value, name)


def work_dtype(work: Work) -> str:
    return arithmetic_dtype(work.reads, work.writes)
