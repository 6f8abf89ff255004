"""A StableHLO file, as JAX and XLA front ends write it, to the graph of its step; neither JAX nor the program is needed.

The text form with locations is read: `jax.jit(step).lower(...).as_text(debug_info=True)`. The locations tell the forward from the
backward pass, and the names of the arguments tell what belongs together.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from traincast.capture._folding import fold
from traincast.capture._phases import Leaf, find_roles, mark_gradients, mark_kept, name_leaves, tell_mode
from traincast.errors import CaptureFailed, InvalidInput
from traincast.spec import Attr, Graph, Op, Repeat, Tensor
from traincast.units import DTYPE_BYTES

_DTYPES = {
    "f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
    "ui64": "int64", "ui32": "int32", "ui16": "int16", "ui8": "uint8", "i1": "bool", "complex<f32>": "complex64",
    "f8E4M3FN": "fp8", "f8E5M2": "fp8",
}  # fmt: skip
_VIEWS = ("reshape", "broadcast_in_dim", "optimization_barrier", "custom_call", "bitcast_convert")
_TRANSCENDENTAL = frozenset(
    [
        "exponential",
        "exponential_minus_one",
        "log",
        "log_plus_one",
        "tanh",
        "logistic",
        "sqrt",
        "rsqrt",
        "power",
        "sine",
        "cosine",
        "tan",
        "cbrt",
        "atan2",
    ]
)
_POINTWISE = _TRANSCENDENTAL | frozenset(
    [
        "add",
        "subtract",
        "multiply",
        "divide",
        "maximum",
        "minimum",
        "negate",
        "abs",
        "sign",
        "floor",
        "ceil",
        "round_nearest_even",
        "round_nearest_afz",
        "select",
        "compare",
        "and",
        "or",
        "not",
        "xor",
        "is_finite",
        "remainder",
        "clamp",
        "shift_left",
        "shift_right_logical",
        "shift_right_arithmetic",
        "real",
        "imag",
        "complex",
        "popcnt",
    ]
)
_MOVES = frozenset(["concatenate", "pad", "slice", "reverse", "transpose", "convert", "iota", "reduce_precision"])
_INDEXING = frozenset(["gather", "dynamic_gather", "scatter", "dynamic_slice", "dynamic_update_slice"])
_TENSOR = re.compile(r"tensor<((?:\d+x)*)([a-zA-Z]\w*(?:<\w+>)?)>")
_VALUE = re.compile(r"%[\w]+(?:#\d+)?")
_LOCATION = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_FUNCTION = re.compile(r"func\.func (?:\w+ )?@([\w.$-]+)\((.*)")
_ARGUMENT = re.compile(r'(%\w+): (tensor<[^>]*>+)(?: loc\((?:"([^"]*)"|(#loc\d*))\))?')
_STATEMENT = re.compile(r"^(?:(%\w+)(?::(\d+))? = )?\"?(?:stablehlo|mhlo|chlo|func)?\.?([\w.]+)\"?(.*)$")
_SCOPE = re.compile(r"(?:transpose|jvp|jit|vmap|remat|checkpoint|rematted_computation)\(|\)")


@dataclass(slots=True)
class _Function:
    arguments: list[tuple[str, str, str]]
    """(name, type, location)."""
    lines: list[str] = field(default_factory=list)


def read_stablehlo(path: str | Path, *, batch_size: int | None = None, name: str = "") -> Graph:
    """Read a .mlir file; the batch is the first dim of the first input unless `batch_size` says otherwise."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"{path} cannot be read as text: {error}; write StableHLO with as_text(debug_info=True)"
        ) from error
    functions, locations = _split(text)
    if "main" not in functions:
        raise InvalidInput(f"{path} holds no StableHLO function @main")
    if not any("/" in location for location in locations.values()):
        raise CaptureFailed(f"{path} says nothing about forward and backward; write it with as_text(debug_info=True)")
    walker = _Walker(functions, locations)
    try:
        returned = walker.run_main()
    except (IndexError, KeyError, ValueError, ZeroDivisionError, RecursionError) as error:
        raise CaptureFailed(
            f"{path} holds a statement that cannot be read: {' '.join(str(error).split())[:200]}"
        ) from error
    walker.give_roles(returned)
    batch = batch_size or walker.first_batch()
    if batch is None:
        raise InvalidInput(f"{path} has no input to take the batch from; give the batch")
    graph = walker.graph(name=name or Path(path).stem, batch_size=batch)
    return graph if graph.repeats else fold(graph)


def _split(text: str) -> tuple[dict[str, _Function], dict[str, str]]:
    functions: dict[str, _Function] = {}
    locations: dict[str, str] = {}
    current: _Function | None = None
    for line in text.splitlines():
        stripped = line.strip()
        location = _LOCATION.match(stripped)
        if location is not None:
            quoted = re.search(r'"([^"]*)"', location[2])
            other = re.search(r"#loc\d*", location[2])
            locations[location[1]] = quoted[1] if quoted else f"->{other[0]}" if other else ""
            continue
        opened = _FUNCTION.search(stripped)
        if opened is not None:
            arguments = opened[2].partition(") -> ")[0] if ") -> " in opened[2] else opened[2]
            current = _Function(
                [(found[1], found[2], found[3] or found[4] or "") for found in _ARGUMENT.finditer(arguments)]
            )
            functions[opened[1]] = current
        elif current is not None:
            current.lines.append(stripped)
    return functions, locations


def _types(text: str) -> list[tuple[tuple[int, ...], str]]:
    return [
        (tuple(int(size) for size in found[1].split("x") if size), _DTYPES.get(found[2], "int32"))
        for found in _TENSOR.finditer(text)
    ]


def _whole(text: str, key: str) -> list[int]:
    found = re.search(rf"{key} = \[([\d, ]*)\]", text)
    return [int(part) for part in found[1].split(",") if part.strip()] if found else []


@dataclass(frozen=True, slots=True)
class _Held:
    """A value of the program: its shape, its memory, and its number where it is a known scalar."""

    shape: tuple[int, ...]
    dtype: str
    index: int | None
    number: int | None = None

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


class _Walker:
    def __init__(self, functions: dict[str, _Function], locations: dict[str, str]) -> None:
        self.functions = functions
        self.locations = locations
        self.ops: list[Op] = []
        self.repeats: list[Repeat] = []
        self.tensors: list[Tensor] = []
        self.inputs: list[tuple[_Held, str]] = []
        self._in_loop = False
        self._seen_backward = False

    def new(self, shape: tuple[int, ...], dtype: str, *, role: str = "temporary") -> _Held:
        self.tensors.append(Tensor(shape=shape, dtype=dtype, role=role))
        return _Held(shape, dtype, len(self.tensors) - 1)

    def run_main(self) -> list[_Held]:
        values: dict[str, _Held] = {}
        for name, kind, location in self.functions["main"].arguments:
            (shape, dtype), *_ = _types(kind)
            values[name] = self.new(shape, dtype, role="input")
            self.inputs.append((values[name], self._text(location)))
        return self._run(self.functions["main"].lines, 0, values, "")[0]

    def _text(self, location: str) -> str:
        for _ in range(20):
            if not location.startswith(("#loc", "->")):
                return location
            location = self.locations.get(location.removeprefix("->"), "")
        return ""

    def _run(self, lines: Sequence[str], start: int, values: dict[str, _Held], scope: str) -> tuple[list[_Held], int]:
        """Statements up to the return of their block; also the position after it."""
        position = start
        while position < len(lines):
            line = lines[position]
            if re.match(r"^(?:stablehlo\.|func\.)?return\b", line):
                named = _VALUE.findall(line.partition(" : ")[0])
                return [self._value(values, text) for text in named], position + 1
            if line in ("", "}") or line.startswith("}"):
                position += 1
                continue
            position = self._statement(lines, position, values, scope)
        return [], position

    def _value(self, values: dict[str, _Held], text: str) -> _Held:
        found = values.get(text) or values.get(text + "#0")
        if found is None:
            raise CaptureFailed(f"the StableHLO file uses {text}, which it does not define")
        return found

    def _statement(self, lines: Sequence[str], position: int, values: dict[str, _Held], scope: str) -> int:
        line = lines[position]
        found = _STATEMENT.match(line)
        if found is None:
            raise CaptureFailed(f"the StableHLO line {line[:120]!r} cannot be read")
        target, count, op, rest = found[1], int(found[2] or 1), found[3].rpartition(".")[2], found[4]
        if op == "while":
            return self._while(lines, position, values, scope, target)
        end = position
        if rest.rstrip().endswith("({"):
            # A region: the arithmetic of a reduction or a scatter. Its types stand after the closing bracket.
            while not lines[end].startswith("})"):
                end += 1
            rest = rest + " " + lines[end]
        place = self._place(rest, scope)
        operands = [self._value(values, text) for text in _VALUE.findall(_operands(rest)) if _is_known(values, text)]
        if op == "call":
            name = re.search(r"@([\w.$-]+)", rest)
            results = self._call(name[1] if name else "", operands, place)
        else:
            results = self._apply(op, rest, operands, place)
        if target is not None:
            for number in range(max(count, len(results))):
                if number < len(results):
                    values[f"{target}#{number}" if count > 1 else target] = results[number]
        return end + 1

    def _place(self, rest: str, scope: str) -> str:
        found = re.search(r"loc\((#loc\d*|\"[^\"]*\")\)\s*$", rest)
        own = self._text(found[1].strip('"')) if found else ""
        return "/".join(part for part in (scope, own) if part)

    def _call(self, name: str, operands: Sequence[_Held], scope: str) -> list[_Held]:
        function = self.functions.get(name)
        if function is None:
            raise CaptureFailed(f"the StableHLO file calls @{name}, which it does not define")
        values = {argument[0]: held for argument, held in zip(function.arguments, operands, strict=False)}
        return self._run(function.lines, 0, values, scope)[0]

    def _while(
        self, lines: Sequence[str], position: int, values: dict[str, _Held], scope: str, target: str | None
    ) -> int:
        pairs = re.findall(r"(%\w+) = (%[\w#]+)", lines[position].partition("while(")[2].partition(") :")[0])
        carried = {name: self._value(values, given) for name, given in pairs}
        body = position
        while not lines[body].endswith("do {"):
            body += 1
        rounds = _rounds(lines[position:body], carried)
        if rounds is None:
            raise CaptureFailed(
                "a loop of the StableHLO file has no known length; use scan or a fixed number of rounds"
            )
        outer, self._in_loop = self._in_loop, True
        start = len(self.ops)
        results, end = self._run(lines, body + 1, {**values, **carried}, scope)
        self._in_loop = outer
        done = self.ops[start:]
        if done and rounds > 1:
            if outer:
                self.ops += done * (rounds - 1)
            else:
                self.repeats.append(Repeat(start=start, stop=len(self.ops), count=rounds))
        for number, held in enumerate(results):
            values[f"{target}#{number}"] = replace(held, number=None)
        return end

    def _apply(self, op: str, rest: str, operands: list[_Held], place: str) -> list[_Held]:
        kinds = _types(rest.rpartition("->")[2] if "->" in rest else rest.rpartition(" : ")[2])
        if not kinds:
            return []
        if op == "constant":
            number = re.search(r"dense<(-?\d+)>", rest)
            return [_Held(kinds[0][0], kinds[0][1], None, int(number[1]) if number else None)]
        if "->" not in rest:
            kinds = kinds[-1:]
        if op in _VIEWS and operands:
            return [replace(operands[0], shape=shape, dtype=dtype, number=None) for shape, dtype in kinds]
        if op == "dynamic_update_slice":
            # Written in place: what is touched is the update.
            whole = operands[0] if operands[0].index is not None else self.new(*kinds[0])
            self._emit(op, "index", 0.0, {"function": op, "numel": operands[1].numel}, operands[1:2], [whole],
                       place, size=_size(operands[1]))  # fmt: skip
            return [whole]
        results = [self.new(shape, dtype) for shape, dtype in kinds]
        if any(result.numel > 1 for result in results) or any(held.numel > 1 for held in operands):
            kind, flop, attrs = _describe(op, rest, operands, results)
            size = _size(results[0]) if op in ("slice", "dynamic_slice", "gather") else None
            self._emit(op, kind, flop, attrs, operands, results, place, size=size)
        return results

    def _emit(
        self, op: str, kind: str, flop: float | None, attrs: dict[str, Attr], reads: Sequence[_Held],
        writes: Sequence[_Held], place: str, *, size: float | None = None,
    ) -> None:  # fmt: skip
        dtypes = [held.dtype for held in (*reads, *writes)]
        self.ops.append(
            Op(
                name=f"stablehlo.{op}", kind=kind, flop=flop, attrs=attrs, phase=self._phase(place),
                bytes_read=sum(_size(held) for held in reads if held.index is not None) if size is None else size,
                bytes_written=sum(_size(held) for held in writes) if size is None else size,
                dtype=next((d for d in dtypes if d.startswith(("fp", "bf", "complex"))), dtypes[0] if dtypes else "fp32"),
                reads=tuple(dict.fromkeys(held.index for held in reads if held.index is not None)),
                writes=tuple(dict.fromkeys(held.index for held in writes if held.index is not None)),
                layer=".".join(part for part in _SCOPE.sub("", place).split("/")[:-1] if part),
            )
        )  # fmt: skip

    def _phase(self, place: str) -> str:
        if "rematted_computation" in place:
            return "recompute"
        if "transpose(" in place:
            self._seen_backward = True
            return "backward"
        return "optimizer" if self._seen_backward and "jvp(" not in place else "forward"

    def give_roles(self, returned: Sequence[_Held]) -> None:
        results = Counter((held.shape, held.dtype) for held in returned)
        passed_on = {held.index for held in returned}
        leaves = []
        for held, path in self.inputs:
            parts = tuple(part for part in re.split(r"[\[\]'.\"]+", path) if part) or (f"argument_{held.index}",)
            leaves.append(
                Leaf(
                    tensor=held.index or 0, argument=hash(parts[0]), path=parts,
                    is_returned=results[held.shape, held.dtype] > 0, is_passed_on=held.index in passed_on,
                )
            )  # fmt: skip
        for index, role in find_roles(leaves, self.tensors, self.ops).items():
            self.tensors[index] = replace(self.tensors[index], role=role)
        for index, name in name_leaves(leaves, self.tensors).items():
            self.tensors[index] = replace(self.tensors[index], name=name)

    def first_batch(self) -> int | None:
        inputs = (held for held, _ in self.inputs if self.tensors[held.index or 0].role == "input" and held.shape)
        return next((held.shape[0] for held in inputs), None)

    def graph(self, *, name: str, batch_size: int) -> Graph:
        return Graph(
            name=name, ops=tuple(self.ops), tensors=mark_gradients(mark_kept(self.tensors, self.ops), self.ops),
            batch_size=batch_size, repeats=tuple(self.repeats), mode=tell_mode(self.ops), source="stablehlo",
            assumptions=("operations are counted as the file has them, before XLA fuses them",),
        )  # fmt: skip


def _size(held: _Held) -> float:
    return held.numel * DTYPE_BYTES[held.dtype]


def _operands(rest: str) -> str:
    """The part of a statement before its types and attributes."""
    return re.split(r" : |\s<\{|\{", rest, maxsplit=1)[0]


def _is_known(values: dict[str, _Held], text: str) -> bool:
    return text in values or text + "#0" in values


def _rounds(lines: Sequence[str], carried: dict[str, _Held]) -> int | None:
    """Of a loop that counts up to a constant."""
    constants = {
        found[1]: int(found[2])
        for line in lines
        if (found := re.match(r"(%\w+) = stablehlo\.constant dense<(-?\d+)>", line)) is not None
    }
    for line in lines:
        found = re.search(r"compare\s+LT, (%\w+), (%\w+)", line)
        if found is not None and found[1] in carried:
            first = carried[found[1]].number
            last = constants.get(found[2], carried[found[2]].number if found[2] in carried else None)
            return None if first is None or last is None else max(0, last - first)
    return None


def _describe(
    op: str, rest: str, operands: Sequence[_Held], results: Sequence[_Held]
) -> tuple[str, float | None, dict[str, Attr]]:
    numel = max(held.numel for held in results)
    largest = max((held.numel for held in operands), default=0)
    if op == "dot_general":
        return _dot(rest, operands[0].shape, operands[1].shape)
    if op == "convolution":
        return _convolution(rest, operands[0].shape, operands[1].shape, results[0].shape)
    if op in _POINTWISE:
        per_element = 4 if op in _TRANSCENDENTAL else 1
        attrs: dict[str, Attr] = {"function": op, "numel": numel, "num_inputs": len(operands)}
        return "elementwise", float(per_element * numel), attrs
    if op == "reduce":
        rows = max(1, numel)
        return "reduce", float(largest), {"function": "reduce", "rows": rows, "cols": largest // rows}
    if op in _MOVES:
        return "copy", 0.0, {"function": op, "numel": numel}
    if op in _INDEXING:
        return "index", float(operands[-1].numel) if op == "scatter" else 0.0, {"function": op, "numel": numel}
    if op in ("rng_bit_generator", "rng"):
        return "random", float(numel), {"numel": numel}
    if op == "sort":
        columns = operands[0].shape[-1] if operands[0].shape else 1
        flop = largest * max(1.0, math.log2(max(2, columns)))
        return "sort", flop, {"rows": largest // max(1, columns), "cols": columns}
    if op in ("reduce_window", "select_and_scatter"):
        return _pool(op, rest, numel)
    return "other", None, {}


def _pool(op: str, rest: str, numel: int) -> tuple[str, float | None, dict[str, Attr]]:
    listed = re.search(r"window_dimensions = array<i64: ([^>]*)>", rest)
    window = [int(part) for part in re.findall(r"\d+", listed[1])] if listed else []
    kernel = "x".join(str(size) for size in window if size > 1) or "1"
    return "pool", float(numel * math.prod(window or [1])), {"function": op, "numel": numel, "kernel": kernel}


def _dot(rest: str, left: tuple[int, ...], right: tuple[int, ...]) -> tuple[str, float, dict[str, Attr]]:
    def pair(key: str) -> tuple[list[int], list[int]]:
        found = re.search(rf"{key} = \[([\d, ]*)\] x \[([\d, ]*)\]", rest)
        if found is None:
            return [], []
        first, second = ([int(part) for part in group.split(",") if part.strip()] for group in found.groups())
        return first, second

    (left_batch, right_batch), (left_inner, right_inner) = pair("batching_dims"), pair("contracting_dims")
    batch, k = math.prod(left[dim] for dim in left_batch), math.prod(left[dim] for dim in left_inner)
    m = math.prod(size for dim, size in enumerate(left) if dim not in (*left_batch, *left_inner))
    n = math.prod(size for dim, size in enumerate(right) if dim not in (*right_batch, *right_inner))
    layout = "nn"
    if left_inner and max(left_inner) < len(left) - 1:
        layout = "nt"
    elif right_inner and max(right_inner) == len(right) - 1:
        layout = "tn"
    return "matmul", 2.0 * batch * m * n * k, {"batch": batch, "m": m, "n": n, "k": k, "layout": layout}


def _convolution(
    rest: str, left: tuple[int, ...], right: tuple[int, ...], output: tuple[int, ...]
) -> tuple[str, float, dict[str, Attr]]:
    """The gradients are convolutions too: one dilates its input, the other its kernel."""
    found = re.search(r"dim_numbers = \[([^\]]*)\]x\[([^\]]*)\]->\[([^\]]*)\]", rest)
    if found is None:
        raise CaptureFailed("a convolution of the StableHLO file says no dim_numbers")
    data, kernel, result = (group.replace(" ", "").split(",") for group in found.groups())
    groups = math.prod(int(n) for n in re.findall(r"(?:batch|feature)_group_count = (\d+)", rest))

    def spatial(labels: list[str], shape: tuple[int, ...]) -> list[int]:
        return [shape[labels.index(str(dim))] for dim in range(len(shape) - 2)]

    batch, channels, features = left[data.index("b")], left[data.index("f")], right[kernel.index("o")]
    sizes, taps, outs = spatial(data, left), spatial(kernel, right), spatial(result, output)
    dilated = [n for n in _whole(rest, "rhs_dilate") if n > 1]
    widened = [n for n in _whole(rest, "lhs_dilate") if n > 1]
    strides, role = _whole(rest, "stride") or [1] * len(sizes), "forward"
    if dilated or data.index("f") == 0:
        batch, channels, taps, outs, role = channels, batch, outs, taps, "grad_weight"
        strides = _whole(rest, "rhs_dilate") or strides
    elif widened or "reverse = [true" in rest:
        channels, features, sizes, outs, role = features, channels, outs, sizes, "grad_input"
        strides = _whole(rest, "lhs_dilate") or strides
    flop = 2.0 * batch * math.prod(outs) * math.prod(taps) * channels * features / groups

    def text(values: Sequence[int]) -> str:
        return "x".join(str(value) for value in values) or "1"

    attrs: dict[str, Attr] = {
        "batch": batch, "in_channels": channels, "out_channels": features, "groups": groups, "in_size": text(sizes),
        "out_size": text(outs), "kernel": text(taps), "stride": text(strides), "pass": role,
    }  # fmt: skip
    if not data[-1].isdigit():
        attrs["channels_last"] = True
    return "conv", flop, attrs
