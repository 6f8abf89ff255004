"""A JAX function to the graph of what it computes, by walking its jaxpr; nothing is compiled or allocated.

A jaxpr is what the program says, before XLA fuses it, so pointwise operations are counted one by one. Reshapes and broadcasts
are views: XLA never writes them out.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from traincast.capture._flow import SENTENCE, UNTOLD, tell_phases
from traincast.capture._folding import fold
from traincast.capture._jaxpr import parse_jaxpr
from traincast.capture._phases import Leaf, find_roles, mark_gradients, mark_kept, name_leaves, tell_mode
from traincast.capture._sharding import Annotations, find_annotations
from traincast.errors import CaptureFailed, InvalidInput, MissingExtra, TraincastError
from traincast.spec import Attr, Graph, Op, Parallelism, Repeat, Scalable, Tensor
from traincast.units import DTYPE_BYTES

_DTYPES = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int64": "int64", "int32": "int32",
    "int16": "int16", "int8": "int8", "uint64": "int64", "uint32": "int32", "uint16": "int16", "uint8": "uint8", "bool": "bool",
    "complex64": "complex64", "complex128": "complex128", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "f8_e4m3fn": "fp8",
    "f8_e5m2": "fp8",
}  # fmt: skip
_VIEWS = {"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "stop_gradient", "copy_p", "copy", "sharding_constraint",
          "optimization_barrier", "name", "pvary", "reshard", "mesh_cast", "layout_constraint"}  # fmt: skip
_CALLS = {"pjit": "jaxpr", "jit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat": "jaxpr",
          "remat2": "jaxpr", "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
          "custom_vjp_call_jaxpr": "fun_jaxpr", "custom_lin": "call_jaxpr", "shard_map": "jaxpr", "run_state": "jaxpr",
          "xla_call": "call_jaxpr", "xla_pmap": "call_jaxpr"}  # fmt: skip
_COLLECTIVES = {"psum", "psum2", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant", "reduce_scatter",
                "all_to_all", "ppermute", "axis_index", "pbroadcast", "psum_scatter"}  # fmt: skip
_TRANSCENDENTAL = {"exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "erf", "erf_inv", "erfc", "sqrt", "rsqrt", "pow",
                   "sin", "cos", "tan", "atan2", "cbrt"}  # fmt: skip
_POINTWISE = _TRANSCENDENTAL | {
    "add", "sub", "mul", "div", "max", "min", "neg", "abs", "sign", "floor", "ceil", "round", "select_n", "clamp", "integer_pow",
    "square", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor", "is_finite", "rem", "add_any", "nextafter",
    "shift_left", "shift_right_logical", "shift_right_arithmetic", "real", "imag", "complex", "conj", "population_count",
}  # fmt: skip
_REDUCTIONS = {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin", "reduce",
               "cumsum", "cumprod", "cummax", "cumlogsumexp"}  # fmt: skip
_MOVES = {"concatenate", "pad", "slice", "rev", "transpose", "convert_element_type", "bitcast_convert_type", "iota", "full",
          "reduce_precision", "split", "copy_start", "empty"}  # fmt: skip
_INDEXING = {"gather", "scatter", "scatter-add", "scatter_add", "scatter_mul", "dynamic_slice", "dynamic_update_slice"}
_RANDOM = {"random_bits", "random_seed", "random_wrap", "random_unwrap", "random_fold_in", "random_split", "threefry2x32",
           "random_gamma", "rng_bit_generator", "rng_uniform"}  # fmt: skip
_UNROLL_LIMIT = 20000
_MOST_OPS = 2_000_000
_SCOPE = re.compile(r"(?:transpose|jvp|jit|vmap|remat|checkpoint|rematted_computation)\(|\)")


def capture_jax(
    function: Callable[..., Any],
    *arguments: Any,
    parameters: int | Sequence[int] | None = None,
    optimizer_state: int | Sequence[int] = (),
    batch_size: int | None = None,
    name: str = "",
) -> Graph:
    """Record `function(*arguments)`; arrays or `jax.ShapeDtypeStruct`s serve as arguments.

    In a training step the parameters are told from moments, buffers and data by how they are used: what the passes and the
    update both read is a parameter, what the update alone reads is optimizer state. `parameters` and `optimizer_state` name
    positional arguments instead; a function without an update has its parameters in argument 0. The batch is the first dim of
    the first input unless `batch_size` says otherwise.
    """
    try:
        import jax
    except ImportError as error:
        raise MissingExtra("jax", "jax", "recording a JAX function") from error
    name = name or getattr(function, "__name__", "function")
    closed, walker = _traced(jax, name, function, arguments, parameters, optimizer_state)
    annotations = walker.annotations(closed.jaxpr)
    graph = _finish(walker, closed.jaxpr, annotations, name=name, batch_size=batch_size)
    if annotations.is_manual or annotations.plan().data == 1:
        return graph
    return _of_one_replica(jax, graph, annotations.plan().data, function, arguments, (parameters, optimizer_state))


def _of_one_replica(
    jax: Any,
    graph: Graph,
    replicas: int,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    roles: tuple[Any, Any],
) -> Graph:
    """An annotated program is written for the samples of all replicas; recorded at twice as many too, one's share follows."""
    whole = graph.batch_size
    kept = replace(graph, assumptions=(*graph.assumptions, _all_samples(whole)))
    if whole % replicas:
        return kept

    def twice(leaf: Any) -> Any:
        shape = tuple(jax.numpy.shape(leaf))
        if not shape or shape[0] != whole:
            return leaf
        return jax.ShapeDtypeStruct((2 * whole, *shape[1:]), leaf.dtype)

    closed, walker = _traced(jax, graph.name, function, arguments, *roles)
    inputs = walker.inputs(closed.jaxpr)
    leaves, tree = jax.tree_util.tree_flatten(arguments)
    doubled = jax.tree_util.tree_unflatten(
        tree, [twice(leaf) if place in inputs else leaf for place, leaf in enumerate(leaves)]
    )
    try:
        closed, walker = _traced(jax, graph.name, function, doubled, *roles)
        annotations = walker.annotations(closed.jaxpr)
        large = _finish(walker, closed.jaxpr, annotations, name=graph.name, batch_size=2 * whole)
        share = Scalable(small=graph, large=large).at(whole // replicas)
    except TraincastError:
        return kept
    said = f"of the {whole} samples of the annotated program each of its {replicas} replicas has {whole // replicas}"
    return replace(share, assumptions=(*graph.assumptions, said))


def _all_samples(batch: int) -> str:
    return (
        f"the arrays of the annotated program are those of all devices, and every replica is counted with all {batch} samples; "
        "record it at the batch of one replica"
    )


def _finish(walker: "_Walker", jaxpr: Any, annotations: Annotations, *, name: str, batch_size: int | None) -> Graph:
    plan = annotations.plan() if annotations.sizes else None
    if plan is not None:
        walker.assumptions[annotations.sentence()] = None
    if annotations.is_manual:
        walker.assumptions["what shard_map wraps is counted for one device, as it is written"] = None
    batch = batch_size if batch_size is not None else walker.first_batch(jaxpr)
    if batch is None:
        raise InvalidInput(f"{name} has no input to take the batch from; give batch_size")
    if plan is not None and annotations.is_manual:
        batch = max(1, batch // plan.data)
        if plan.tensor * plan.context > 1:
            walker.assumptions[annotations.by_hand()] = None
            plan = None
    graph = walker.graph(name=name, batch_size=batch, plan=plan)
    return graph if graph.repeats else fold(graph)


def read_jaxpr(path: str | Path, *, batch_size: int | None = None, name: str = "") -> Graph:
    """Read a jaxpr that was written as text; neither JAX nor the program is needed."""
    jaxpr, has_scopes = parse_jaxpr(path)
    walker = _Walker()
    try:
        walker.bind_inputs(jaxpr)
        walker.walk(jaxpr)
        if not has_scopes:
            walker.tell_phases(jaxpr)
        paths = [(place, (f"argument_{place}",)) for place in range(len(jaxpr.invars))]
        weights = walker.guess_weights(jaxpr)
        walker.give_roles(jaxpr, paths, parameters=weights, optimizer_state=())
        walker.name_states()
        annotations = walker.annotations(jaxpr)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        found = " ".join(str(error).split())[:200]
        raise CaptureFailed(f"{path} holds an equation that cannot be read: {type(error).__name__}: {found}") from error
    except RecursionError as error:
        raise CaptureFailed(f"{path} nests its functions too deeply") from error
    graph = _finish(walker, jaxpr, annotations, name=name or Path(path).stem, batch_size=batch_size)
    if graph.plan is None or graph.plan.data == 1 or annotations.is_manual:
        return graph
    return replace(graph, assumptions=(*graph.assumptions, _all_samples(graph.batch_size)))


def read_jax_plan(function: Callable[..., Any], *arguments: Any) -> Parallelism:
    """The plan that the sharding annotations of a program mean: of jit, shard_map and constraints."""
    import jax

    closed, walker = _traced(jax, getattr(function, "__name__", "function"), function, arguments, None, ())
    return walker.annotations(closed.jaxpr).plan()


def _traced(
    jax: Any, name: str, function: Callable[..., Any], arguments: tuple[Any, ...], parameters: int | Sequence[int] | None,
    optimizer_state: int | Sequence[int],
) -> tuple[Any, "_Walker"]:  # fmt: skip
    """The jaxpr, walked, with the roles of its inputs."""
    try:
        closed = jax.make_jaxpr(function)(*arguments)
    except Exception as error:
        raise CaptureFailed(f"{name} cannot be traced by JAX: {' '.join(str(error).split())[:300]}") from error
    leaves = [
        (number, tuple(_key(key) for key in path))
        for number, argument in enumerate(arguments)
        for path, _ in jax.tree_util.tree_flatten_with_path(argument)[0]
    ]
    walker = _Walker()
    walker.bind_inputs(closed.jaxpr)
    walker.walk(closed.jaxpr)
    walker.give_roles(closed.jaxpr, leaves, parameters=parameters, optimizer_state=optimizer_state)
    return closed, walker


def _numbers(which: int | Sequence[int]) -> tuple[int, ...]:
    return (which,) if isinstance(which, int) else tuple(which)


def _key(key: Any) -> str:
    """One step of a path, whether a dict key, a position or an attribute."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute)).replace(".", "_")
    return str(key).replace(".", "_")


class _Walker:
    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.repeats: list[Repeat] = []
        self.assumptions: dict[str, None] = {
            "operations are counted as the jaxpr has them, before XLA fuses them": None
        }
        self._tensors: list[Tensor] = []
        self._index: dict[int, int] = {}
        self._kept: list[Any] = []
        self._in_repeat = False
        self._seen_backward = False
        self._stacked: dict[int, int] = {}
        """Tensors of a loop's body of which the loop returns one per round."""

    def bind_inputs(self, jaxpr: Any) -> None:
        for variable in jaxpr.invars:
            self._new(variable, role="input")
        for variable in jaxpr.constvars:
            self._new(variable, role="buffer")

    def give_roles(
        self, jaxpr: Any, paths: Sequence[tuple[int, tuple[str, ...]]], *, parameters: int | Sequence[int] | None,
        optimizer_state: int | Sequence[int],
    ) -> None:  # fmt: skip
        """Roles and names of the inputs, once it is known what reads them."""
        results = Counter((tuple(v.aval.shape), str(v.aval.dtype)) for v in jaxpr.outvars)
        returned = {self._of(variable) for variable in jaxpr.outvars}
        leaves = [
            Leaf(
                tensor=self._index[id(variable)],
                argument=argument,
                path=path,
                is_returned=results[tuple(variable.aval.shape), str(variable.aval.dtype)] > 0,
                is_passed_on=self._index[id(variable)] in returned,
            )
            for variable, (argument, path) in zip(jaxpr.invars, paths, strict=True)
        ]
        roles = find_roles(leaves, self._tensors, self.ops) if parameters is None and optimizer_state == () else {}
        if not roles:
            named = dict.fromkeys(_numbers(0 if parameters is None else parameters), "parameter")
            named |= dict.fromkeys(_numbers(optimizer_state), "optimizer_state")
            roles = {leaf.tensor: named.get(leaf.argument, "input") for leaf in leaves}
        for index, role in roles.items():
            self._tensors[index] = replace(self._tensors[index], role=role)
        for index, name in name_leaves(leaves, self._tensors).items():
            self._tensors[index] = replace(self._tensors[index], name=name)

    def tell_phases(self, jaxpr: Any) -> None:
        """By what the operations read."""
        inputs = {self._index[id(variable)] for variable in (*jaxpr.invars, *jaxpr.constvars)}
        outputs = [self._of(variable) for variable in jaxpr.outvars]
        self.ops, is_told = tell_phases(self.ops, self._tensors, inputs=inputs, outputs=outputs, stacked=self._stacked)
        self.assumptions[SENTENCE if is_told else UNTOLD] = None

    def guess_weights(self, jaxpr: Any) -> Sequence[int] | None:
        """Of a program without an update, whose arguments are not told apart: what does not begin with the batch."""
        if any(op.phase == "optimizer" for op in self.ops):
            return None
        shapes = [
            variable.aval.shape for variable in (*jaxpr.outvars[:1], *reversed(jaxpr.invars)) if variable.aval.shape
        ]
        batch = shapes[0][0] if shapes else 1
        weights = [place for place, v in enumerate(jaxpr.invars) if not v.aval.shape or v.aval.shape[0] != batch]
        self.assumptions[f"arrays whose first dim is {batch} are taken as data, the others as weights"] = None
        return weights

    def name_states(self) -> None:
        """Moments after their parameters, where no path says which is whose: trees list both in the same order."""
        weights: dict[tuple[int, ...], list[str]] = {}
        for tensor in self._tensors:
            if tensor.role == "parameter":
                weights.setdefault(tensor.shape, []).append(tensor.name)
        seen: Counter[tuple[int, ...]] = Counter()
        for index, tensor in enumerate(self._tensors):
            owners = weights.get(tensor.shape)
            if tensor.role == "optimizer_state" and owners:
                place = seen[tensor.shape]
                seen[tensor.shape] += 1
                name = f"{owners[place % len(owners)]}.state_{place // len(owners)}"
                self._tensors[index] = replace(tensor, name=name)

    def annotations(self, jaxpr: Any) -> Annotations:
        roles = [self._tensors[self._index[id(variable)]].role for variable in jaxpr.invars]
        kept = ("parameter", "optimizer_state")
        return find_annotations(jaxpr, {place: role in kept for place, role in enumerate(roles)})

    def first_batch(self, jaxpr: Any) -> int | None:
        for variable in jaxpr.invars:
            if self._tensors[self._index[id(variable)]].role == "input" and variable.aval.shape:
                return int(variable.aval.shape[0])
        return None

    def _new(self, variable: Any, *, role: str = "temporary") -> int:
        dtype = _DTYPES.get(str(variable.aval.dtype), "int32")
        self._tensors.append(Tensor(shape=tuple(int(n) for n in variable.aval.shape), dtype=dtype, role=role))
        self._index[id(variable)] = len(self._tensors) - 1
        self._kept.append(variable)
        return len(self._tensors) - 1

    def _of(self, variable: Any) -> int | None:
        return None if hasattr(variable, "val") else self._index.get(id(variable))

    def walk(self, jaxpr: Any, scope: str = "") -> None:
        for equation in jaxpr.eqns:
            primitive = equation.primitive.name
            stack = "/".join(part for part in (scope, str(equation.source_info.name_stack)) if part)
            if primitive in _CALLS:
                self._call(equation, equation.params[_CALLS[primitive]], stack)
            elif primitive == "scan":
                self._loop(equation, equation.params["jaxpr"], int(equation.params["length"]), stack)
            elif primitive == "while":
                self._while(equation, stack)
            elif primitive == "cond":
                self._choose(equation, stack)
            elif primitive in _COLLECTIVES:
                self._collective(equation)
            elif primitive in _VIEWS:
                # A scalar that is broadcast is never written out either.
                for outer, inner in zip(equation.outvars, equation.invars, strict=False):
                    self._alias(outer, inner)
            else:
                self._record(equation, stack)

    def _call(self, equation: Any, inner: Any, scope: str, *, skip: int = 0) -> None:
        jaxpr = getattr(inner, "jaxpr", inner)
        for outer, variable in zip(equation.invars[skip:], jaxpr.invars, strict=False):
            self._alias(variable, outer)
        for variable in jaxpr.constvars:
            self._new(variable, role="buffer")
        self.walk(jaxpr, scope)
        for outer, variable in zip(equation.outvars, jaxpr.outvars, strict=False):
            self._alias(outer, variable)

    def _alias(self, new: Any, old: Any) -> None:
        found = self._of(old)
        if found is None:
            self._new(new)
        else:
            self._index[id(new)] = found
            self._kept.append(new)

    def _loop(self, equation: Any, inner: Any, length: int, scope: str, *, skip: int = 0) -> None:
        """A scan repeats its body; inside another scan it is written out."""
        start = len(self.ops)
        outer_repeat, self._in_repeat = self._in_repeat, True
        self._call(equation, inner, scope, skip=skip)
        self._in_repeat = outer_repeat
        for variable in equation.outvars[int(equation.params.get("num_carry", len(equation.outvars))) :]:
            index = self._of(variable)
            if index is not None:
                self._stacked[index] = length
        body = self.ops[start:]
        if not body or length == 1:
            return
        if not outer_repeat:
            self.repeats.append(Repeat(start=start, stop=len(self.ops), count=length))
        elif len(body) * length <= _UNROLL_LIMIT:
            self.ops += body * (length - 1)
        else:
            raise CaptureFailed(f"nested scans of JAX run {len(body) * length} operations per step; unroll less")

    def _while(self, equation: Any, scope: str) -> None:
        """A counted loop runs as often as its condition says; another one needs a fixed length."""
        length = _trip_count(equation)
        if length is None:
            raise CaptureFailed("a while loop of JAX has no known length; use scan or fori_loop with a fixed length")
        skip = int(equation.params["cond_nconsts"])
        self._loop(equation, equation.params["body_jaxpr"], length, scope, skip=skip)

    def _choose(self, equation: Any, scope: str) -> None:
        """The branch with most operations stands for a condition that is not known."""
        branches = equation.params["branches"]
        self.assumptions["of a condition the branch with most operations is counted"] = None
        self._call(equation, max(branches, key=lambda branch: len(branch.jaxpr.eqns)), scope, skip=1)

    def _collective(self, equation: Any) -> None:
        """The graph is one device's; the plan adds the exchange."""
        self.assumptions["collectives of the program are left to the plan"] = None
        for outer, inner in zip(equation.outvars, equation.invars, strict=False):
            if outer.aval.shape == inner.aval.shape:
                self._alias(outer, inner)
            else:
                self._new(outer)

    def _record(self, equation: Any, stack: str) -> None:
        if len(self.ops) > _MOST_OPS:
            raise CaptureFailed(f"the step runs more than {_MOST_OPS:,} operations; use scan for what repeats")
        kind, flop, attrs = _describe(equation)
        reads = [index for index in map(self._of, equation.invars) if index is not None]
        writes = [self._new(variable) for variable in equation.outvars]
        # A slice of stacked weights is smaller than their tensor, a broadcast larger: what is read is the smaller.
        touched: dict[int, float] = {}
        for variable in equation.invars:
            index = self._of(variable)
            if index is not None:
                size = math.prod(variable.aval.shape) * DTYPE_BYTES[self._tensors[index].dtype]
                touched[index] = max(touched.get(index, 0.0), min(size, self._whole_bytes(index)))
        read_bytes = sum(touched.values())
        written_bytes = sum(self._tensors[index].num_bytes for index in writes)
        if (kind == "index" and "gather" in equation.primitive.name) or equation.primitive.name in (
            "dynamic_slice",
            "slice",
        ):
            # Only what comes out is read of the table.
            others = sum(self._tensors[index].num_bytes for index in dict.fromkeys(reads[1:]))
            read_bytes = min(read_bytes, written_bytes + others)
        shape_dtypes = [self._tensors[index].dtype for index in (*reads, *writes)]
        dtype = next(
            (d for d in shape_dtypes if d.startswith(("fp", "bf", "complex"))),
            shape_dtypes[0] if shape_dtypes else "fp32",
        )
        phase = self._phase(stack)
        self.ops.append(
            Op(
                name=f"jax.{equation.primitive.name}",
                kind=kind,
                flop=flop,
                bytes_read=read_bytes,
                bytes_written=written_bytes,
                phase=phase,
                dtype=dtype,
                reads=tuple(dict.fromkeys(reads)),
                writes=tuple(writes),
                layer=_layer(stack),
                attrs=attrs,
            )
        )

    def _whole_bytes(self, index: int) -> float:
        return self._tensors[index].num_bytes * self._stacked.get(index, 1)

    def _phase(self, stack: str) -> str:
        if "rematted_computation" in stack:
            return "recompute"
        if "transpose(" in stack:
            self._seen_backward = True
            return "backward"
        return "optimizer" if self._seen_backward and "jvp(" not in stack else "forward"

    def inputs(self, jaxpr: Any) -> set[int]:
        """Places of the data among the arguments."""
        roles = [self._tensors[self._index[id(variable)]].role for variable in jaxpr.invars]
        return {place for place, role in enumerate(roles) if role == "input"}

    def graph(self, *, name: str, batch_size: int, plan: Parallelism | None = None) -> Graph:
        return Graph(
            name=name,
            ops=tuple(self.ops),
            tensors=mark_gradients(mark_kept(self._tensors, self.ops), self.ops, self._stacked),
            batch_size=batch_size,
            repeats=tuple(self.repeats),
            mode=tell_mode(self.ops),
            source="jax",
            assumptions=tuple(self.assumptions),
            plan=plan,
        )


def _trip_count(equation: Any) -> int | None:
    """Of `for i in range(low, high)`, where both ends are in the program."""
    condition = equation.params["cond_jaxpr"]
    if len(condition.jaxpr.eqns) != 1 or condition.jaxpr.eqns[0].primitive.name != "lt":
        return None
    constants, body = int(equation.params["cond_nconsts"]), int(equation.params["body_nconsts"])
    carried = equation.invars[constants + body :]
    given = [*equation.invars[:constants], *carried]
    ends = []
    for variable in condition.jaxpr.eqns[0].invars:
        if not hasattr(variable, "val"):
            place = condition.jaxpr.invars.index(variable) if variable in condition.jaxpr.invars else None
            variable = given[place] if place is not None else variable
        if not hasattr(variable, "val"):
            return None
        ends.append(int(variable.val))
    return max(0, ends[1] - ends[0])


def _layer(stack: str) -> str:
    """'transpose(jvp(GPT))/Block_0/Dense_1' is the layer GPT.Block_0.Dense_1."""
    return ".".join(part for part in _SCOPE.sub("", stack).split("/") if part)


def _shapes(variables: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    for variable in variables:
        yield tuple(int(n) for n in variable.aval.shape)


def _describe(equation: Any) -> tuple[str, float | None, dict[str, Attr]]:
    primitive = equation.primitive.name
    inputs, outputs = list(_shapes(equation.invars)), list(_shapes(equation.outvars))
    numel = max((math.prod(shape) for shape in outputs), default=0)
    largest = max((math.prod(shape) for shape in inputs), default=0)
    if primitive == "dot_general":
        return _dot(equation, inputs)
    if primitive == "conv_general_dilated":
        return _conv(equation, inputs, outputs[0])
    if primitive in _POINTWISE:
        per_element = 4 if primitive in _TRANSCENDENTAL else 1
        return (
            "elementwise",
            float(per_element * numel),
            {"function": primitive, "numel": numel, "num_inputs": len(inputs)},
        )
    if primitive in _REDUCTIONS:
        rows = max(1, numel if not primitive.startswith("cum") else 1)
        return "reduce", float(largest), {"function": primitive, "rows": rows, "cols": largest // rows}
    if primitive in _MOVES:
        return "copy", 0.0, {"function": primitive, "numel": numel}
    if primitive in _INDEXING:
        adds = "add" in primitive or "mul" in primitive
        return "index", float(math.prod(inputs[-1])) if adds else 0.0, {"function": primitive, "numel": numel}
    if primitive in _RANDOM:
        return "random", float(numel), {"numel": numel}
    if primitive in ("sort", "top_k", "approx_top_k"):
        columns = inputs[0][-1] if inputs[0] else 1
        rows = math.prod(inputs[0]) // max(1, columns)
        return "sort", largest * max(1.0, math.log2(max(2, columns))), {"rows": rows, "cols": columns}
    if primitive.startswith(("reduce_window", "select_and")):
        window = equation.params.get("window_dimensions", (1,))
        kernel = "x".join(str(size) for size in window if size > 1) or "1"
        return "pool", float(numel * math.prod(window)), {"function": primitive, "numel": numel, "kernel": kernel}
    return "other", None, {}


def _dot(equation: Any, inputs: list[tuple[int, ...]]) -> tuple[str, float, dict[str, Attr]]:
    (left_contract, right_contract), (left_batch, right_batch) = equation.params["dimension_numbers"]
    left, right = inputs[0], inputs[1]
    batch = math.prod(left[dim] for dim in left_batch)
    k = math.prod(left[dim] for dim in left_contract)
    m = math.prod(size for dim, size in enumerate(left) if dim not in (*left_contract, *left_batch))
    n = math.prod(size for dim, size in enumerate(right) if dim not in (*right_contract, *right_batch))
    layout = "nn"
    if left_contract and max(left_contract) < len(left) - 1:
        layout = "nt"
    elif right_contract and max(right_contract) == len(right) - 1:
        layout = "tn"
    return "matmul", 2.0 * batch * m * n * k, {"batch": batch, "m": m, "n": n, "k": k, "layout": layout}


def _conv(equation: Any, inputs: list[tuple[int, ...]], output: tuple[int, ...]) -> tuple[str, float, dict[str, Attr]]:
    parameters = equation.params
    numbers = parameters["dimension_numbers"]
    left, right = inputs[0], inputs[1]
    groups = int(parameters["feature_group_count"]) * int(parameters["batch_group_count"])
    spatial = {
        "in": [left[dim] for dim in numbers.lhs_spec[2:]],
        "kernel": [right[dim] for dim in numbers.rhs_spec[2:]],
        "out": [output[dim] for dim in numbers.out_spec[2:]],
    }
    dilated = [int(d) for d in parameters["lhs_dilation"]]
    strides = [int(s) for s in parameters["window_strides"]]
    is_weight = any(int(d) > 1 for d in parameters["rhs_dilation"]) or tuple(numbers.lhs_spec[:2]) > tuple(
        numbers.out_spec[:2]
    )
    batch, channels = left[numbers.lhs_spec[0]], left[numbers.lhs_spec[1]]
    features = right[numbers.rhs_spec[0]]
    if is_weight:
        # Batch and channels change places: the "kernel" that slides is the output gradient.
        sizes = (channels, batch, features, spatial["in"], spatial["kernel"], spatial["out"])
        name, strides = "grad_weight", [int(d) for d in parameters["rhs_dilation"]]
    elif any(d > 1 for d in dilated) or "transpose(" in str(equation.source_info.name_stack):
        sizes = (batch, features, channels, spatial["out"], spatial["in"], spatial["kernel"])
        name, strides = "grad_input", dilated
    else:
        sizes = (batch, channels, features, spatial["in"], spatial["out"], spatial["kernel"])
        name = "forward"
    size, in_channels, out_channels, in_size, out_size, kernel = sizes
    flop = 2.0 * size * math.prod(out_size) * math.prod(kernel) * in_channels * out_channels / groups

    def text(values: Sequence[int]) -> str:
        return "x".join(str(value) for value in values) or "1"

    attrs: dict[str, Attr] = {
        "batch": size, "in_channels": in_channels, "out_channels": out_channels, "groups": groups, "in_size": text(in_size),
        "out_size": text(out_size), "kernel": text(kernel), "stride": text(strides), "pass": name,
    }  # fmt: skip
    if numbers.lhs_spec[1] == len(left) - 1 or numbers.lhs_spec[0] == len(left) - 1:
        attrs["channels_last"] = True
    return "conv", flop, attrs
