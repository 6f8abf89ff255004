"""A JAX function to the graph of what it computes, by walking its jaxpr; nothing is compiled or allocated.

A jaxpr is what the program says, before XLA fuses it, so pointwise operations are counted one by one. Reshapes and broadcasts
are views: XLA never writes them out.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from traincast.capture._extras import need
from traincast.capture._folding import fold
from traincast.capture._phases import Leaf
from traincast.capture._sharding import Annotations, find_annotations
from traincast.capture._xla import Convolution, Described, Recording, describe_dot, describe_op, float_dtype, layer_of
from traincast.errors import CaptureFailed, InvalidInput, TraincastError
from traincast.spec import Graph, Op, Parallelism, Repeat, Scalable, Tensor
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
_UNROLL_LIMIT = 20000
_MOST_OPS = 2_000_000


def capture_jax(
    function: Callable[..., Any], *arguments: Any, parameters: int | Sequence[int] | None = None,
    optimizer_state: int | Sequence[int] = (), batch_size: int | None = None, name: str = "",
) -> Graph:  # fmt: skip
    """Record `function(*arguments)`; arrays or `jax.ShapeDtypeStruct`s serve as arguments.

    In a training step the parameters are told from moments, buffers and data by how they are used: what the passes and the
    update both read is a parameter, what the update alone reads is optimizer state. `parameters` and `optimizer_state` name
    positional arguments instead; a function without an update has its parameters in argument 0. The batch is the first dim of
    the first input unless `batch_size` says otherwise.
    """
    jax = need("jax", extra="jax", purpose="recording a JAX function")
    name = name or getattr(function, "__name__", "function")
    closed, walker = _traced(jax, name, function, arguments, parameters, optimizer_state)
    annotations = walker.annotations(closed.jaxpr)
    graph = _finish(walker, closed.jaxpr, annotations, name=name, batch_size=batch_size)
    if annotations.is_manual or annotations.plan().data == 1:
        return graph
    return _of_one_replica(jax, graph, annotations.plan().data, function, arguments, (parameters, optimizer_state))


def _of_one_replica(
    jax: Any, graph: Graph, replicas: int, function: Callable[..., Any], arguments: tuple[Any, ...],
    roles: tuple[Any, Any],
) -> Graph:  # fmt: skip
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
    named = dict.fromkeys(_numbers(0 if parameters is None else parameters), "parameter")
    named |= dict.fromkeys(_numbers(optimizer_state), "optimizer_state")
    is_told = parameters is not None or optimizer_state != ()
    walker.give_roles(walker.find_leaves(closed.jaxpr, leaves), named if is_told else {})
    return closed, walker


def _numbers(which: int | Sequence[int]) -> tuple[int, ...]:
    return (which,) if isinstance(which, int) else tuple(which)


def _key(key: Any) -> str:
    """One step of a path, whether a dict key, a position or an attribute."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute)).replace(".", "_")
    return str(key).replace(".", "_")


class _Walker(Recording):
    def __init__(self) -> None:
        said = "operations are counted as the jaxpr has them, before XLA fuses them"
        super().__init__(source="jax", assumptions={said: None})
        self._index: dict[int, int] = {}
        self._kept: list[Any] = []

    def bind_inputs(self, jaxpr: Any) -> None:
        for variable in jaxpr.invars:
            self._new(variable, role="input")
        for variable in jaxpr.constvars:
            self._new(variable, role="buffer")

    def find_leaves(self, jaxpr: Any, paths: Sequence[tuple[int, tuple[str, ...]]]) -> list[Leaf]:
        results = Counter((tuple(v.aval.shape), str(v.aval.dtype)) for v in jaxpr.outvars)
        returned = {self._of(variable) for variable in jaxpr.outvars}
        return [
            Leaf(
                tensor=self._index[id(variable)], argument=argument, path=path,
                is_returned=results[tuple(variable.aval.shape), str(variable.aval.dtype)] > 0,
                is_passed_on=self._index[id(variable)] in returned,
            )
            for variable, (argument, path) in zip(jaxpr.invars, paths, strict=True)
        ]  # fmt: skip

    def annotations(self, jaxpr: Any) -> Annotations:
        roles = [self.tensors[self._index[id(variable)]].role for variable in jaxpr.invars]
        kept = ("parameter", "optimizer_state")
        return find_annotations(jaxpr, {place: role in kept for place, role in enumerate(roles)})

    def first_batch(self, jaxpr: Any) -> int | None:
        for variable in jaxpr.invars:
            if self.tensors[self._index[id(variable)]].role == "input" and variable.aval.shape:
                return int(variable.aval.shape[0])
        return None

    def _new(self, variable: Any, *, role: str = "temporary") -> int:
        dtype = _DTYPES.get(str(variable.aval.dtype), "int32")
        self.tensors.append(Tensor(shape=tuple(int(n) for n in variable.aval.shape), dtype=dtype, role=role))
        self._index[id(variable)] = len(self.tensors) - 1
        self._kept.append(variable)
        return len(self.tensors) - 1

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
        outer_repeat, self.in_loop = self.in_loop, True
        self._call(equation, inner, scope, skip=skip)
        self.in_loop = outer_repeat
        for variable in equation.outvars[int(equation.params.get("num_carry", len(equation.outvars))) :]:
            index = self._of(variable)
            if index is not None:
                self.stacked[index] = length
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
                size = math.prod(variable.aval.shape) * DTYPE_BYTES[self.tensors[index].dtype]
                touched[index] = max(touched.get(index, 0.0), min(size, self._whole_bytes(index)))
        read_bytes = sum(touched.values())
        written_bytes = sum(self.tensors[index].num_bytes for index in writes)
        if (kind == "index" and "gather" in equation.primitive.name) or equation.primitive.name in (
            "dynamic_slice",
            "slice",
        ):
            # Only what comes out is read of the table.
            others = sum(self.tensors[index].num_bytes for index in dict.fromkeys(reads[1:]))
            read_bytes = min(read_bytes, written_bytes + others)
        dtypes = [self.tensors[index].dtype for index in (*reads, *writes)]
        self.ops.append(
            Op(
                name=f"jax.{equation.primitive.name}", kind=kind, flop=flop, bytes_read=read_bytes, bytes_written=written_bytes,
                phase=self.phase(stack), dtype=float_dtype(dtypes), reads=tuple(dict.fromkeys(reads)), writes=tuple(writes),
                layer=layer_of(stack), attrs=attrs,
            )
        )  # fmt: skip

    def _whole_bytes(self, index: int) -> float:
        return self.tensors[index].num_bytes * self.stacked.get(index, 1)

    def inputs(self, jaxpr: Any) -> set[int]:
        """Places of the data among the arguments."""
        roles = [self.tensors[self._index[id(variable)]].role for variable in jaxpr.invars]
        return {place for place, role in enumerate(roles) if role == "input"}


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


def _shapes(variables: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    for variable in variables:
        yield tuple(int(n) for n in variable.aval.shape)


def _describe(equation: Any) -> Described:
    primitive, parameters = equation.primitive.name, equation.params
    inputs, outputs = list(_shapes(equation.invars)), list(_shapes(equation.outvars))
    if primitive == "dot_general":
        contracted, batch_dims = parameters["dimension_numbers"]
        return describe_dot(inputs[0], inputs[1], batch_dims=batch_dims, contracted=contracted)
    if primitive == "conv_general_dilated":
        numbers = parameters["dimension_numbers"]
        return Convolution(
            shapes=(inputs[0], inputs[1], outputs[0]), dims=(numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec),
            groups=int(parameters["feature_group_count"]) * int(parameters["batch_group_count"]),
            strides=parameters["window_strides"], left_dilation=parameters["lhs_dilation"],
            right_dilation=parameters["rhs_dilation"], is_reversed="transpose(" in str(equation.source_info.name_stack),
        ).describe()  # fmt: skip
    window = parameters.get("window_dimensions", (1,))
    return describe_op(primitive, inputs, outputs, window=window, adds="add" in primitive or "mul" in primitive)
