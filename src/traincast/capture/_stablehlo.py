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
from traincast.capture._phases import Leaf
from traincast.capture._xla import Convolution, Described, Recording, describe_dot, describe_op, float_dtype, layer_of
from traincast.errors import CaptureFailed, InvalidInput
from traincast.spec import Attr, Graph, Op, Parallelism, Repeat, Tensor
from traincast.units import DTYPE_BYTES

_DTYPES = {
    "f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
    "ui64": "int64", "ui32": "int32", "ui16": "int16", "ui8": "uint8", "i1": "bool", "complex<f32>": "complex64",
    "f8E4M3FN": "fp8", "f8E5M2": "fp8",
}  # fmt: skip
_COLLECTIVES = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute", "collective_broadcast",
)  # fmt: skip
_VIEWS = ("reshape", "broadcast_in_dim", "custom_call", "bitcast_convert", *_COLLECTIVES)
"""What costs a device nothing: another sight of the same memory, and collectives, which are the plan's."""
_TENSOR = re.compile(r"tensor<((?:\d+x)*)([a-zA-Z]\w*(?:<\w+>)?)>")
_VALUE = re.compile(r"%[\w]+(?:#\d+)?")
_LOCATION = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_FUNCTION = re.compile(r"func\.func (?:\w+ )?@([\w.$-]+)\((.*)")
_ARGUMENT = re.compile(r'(%\w+): (tensor<[^>]*>+)(?: loc\((?:"([^"]*)"|(#loc\d*))\))?')
_STATEMENT = re.compile(r"^(?:(%\w+)(?::(\d+))? = )?\"?(?:stablehlo|mhlo|chlo|func|sdy)?\.?([\w.]+)\"?(.*)$")


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
    walker.give_roles(walker.find_leaves(returned))
    batch = batch_size or walker.first_batch()
    if batch is None:
        raise InvalidInput(f"{path} has no input to take the batch from; give the batch")
    if batch_size is None and batch % walker.replicas == 0:
        batch //= walker.replicas
    plan = Parallelism(data=walker.replicas) if walker.replicas > 1 else None
    graph = walker.graph(name=name or Path(path).stem, batch_size=batch, plan=plan)
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


class _Walker(Recording):
    def __init__(self, functions: dict[str, _Function], locations: dict[str, str]) -> None:
        said = "operations are counted as the file has them, before XLA fuses them"
        super().__init__(source="stablehlo", assumptions={said: None})
        self.functions = functions
        self.locations = locations
        self.inputs: list[tuple[_Held, str]] = []
        self.replicas = 1
        """Parts that shard_map cuts the first dim of the data into, where it leaves the weights whole."""

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
            if re.match(r"^(?:stablehlo\.|func\.|sdy\.)?return\b", line):
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
        if op == "manual_computation":
            return self._manual(lines, position, values, scope, target)
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
        outer, self.in_loop = self.in_loop, True
        start = len(self.ops)
        results, end = self._run(lines, body + 1, {**values, **carried}, scope)
        self.in_loop = outer
        done = self.ops[start:]
        if done and rounds > 1:
            if outer:
                self.ops += done * (rounds - 1)
            else:
                self.repeats.append(Repeat(start=start, stop=len(self.ops), count=rounds))
        for number, held in enumerate(results):
            values[f"{target}#{number}"] = replace(held, number=None)
        return end

    def _manual(
        self, lines: Sequence[str], position: int, values: dict[str, _Held], scope: str, target: str | None
    ) -> int:
        """A block that one device runs on its part of each value (shard_map); its statements have the sizes of that part."""
        line = lines[position]
        said = "what shard_map wraps is counted for one device, as it is written, its collectives as the plan says"
        self.assumptions[said] = None
        given = [self._value(values, text) for text in _VALUE.findall(line.partition("(")[2].partition(")")[0])]
        named = _ARGUMENT.findall(line.partition("manual_axes")[2])
        inner = dict(values)
        entered = {held.index for held, _ in self.inputs}
        for held, (name, kind, *_) in zip(given, named, strict=True):
            inner[name] = replace(held, shape=_types(kind)[0][0])
            if held.index in entered and held.shape != inner[name].shape:
                rows, part = held.shape[0], inner[name].shape[0]
                is_data = held.shape[1:] == inner[name].shape[1:] and rows % part == 0
                self.replicas = rows // part if is_data else self.replicas
        depth, end = 1, position + 1
        while depth:
            # A block that closes on its own line opens none.
            depth += lines[end].endswith("{") - lines[end].startswith("}")
            end += 1
        results, _ = self._run(lines[: end - 1], position + 1, inner, self._place(lines[end - 1], scope))
        for number, held in enumerate(results):
            values[f"{target}#{number}" if len(results) > 1 else str(target)] = held
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
        if op == "optimization_barrier":
            return operands
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
                name=f"stablehlo.{op}", kind=kind, flop=flop, attrs=attrs, phase=self.phase(place),
                bytes_read=sum(_size(held) for held in reads if held.index is not None) if size is None else size,
                bytes_written=sum(_size(held) for held in writes) if size is None else size,
                dtype=float_dtype(dtypes),
                reads=tuple(dict.fromkeys(held.index for held in reads if held.index is not None)),
                writes=tuple(dict.fromkeys(held.index for held in writes if held.index is not None)),
                layer=layer_of(place, ends_in_op=True),
            )
        )  # fmt: skip

    def find_leaves(self, returned: Sequence[_Held]) -> list[Leaf]:
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
        return leaves

    def first_batch(self) -> int | None:
        inputs = (held for held, _ in self.inputs if self.tensors[held.index or 0].role == "input" and held.shape)
        return next((held.shape[0] for held in inputs), None)


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


def _describe(op: str, rest: str, operands: Sequence[_Held], results: Sequence[_Held]) -> Described:
    inputs, outputs = [held.shape for held in operands], [held.shape for held in results]
    if op == "dot_general":
        return describe_dot(
            inputs[0], inputs[1], batch_dims=_pair(rest, "batching_dims"), contracted=_pair(rest, "contracting_dims")
        )
    if op == "convolution":
        return _convolution(rest, (inputs[0], inputs[1], outputs[0])).describe()
    listed = re.search(r"window_dimensions = array<i64: ([^>]*)>", rest)
    window = [int(part) for part in re.findall(r"\d+", listed[1])] if listed else [1]
    return describe_op(op, inputs, outputs, window=window, adds=op == "scatter")


def _pair(rest: str, key: str) -> tuple[list[int], list[int]]:
    found = re.search(rf"{key} = \[([\d, ]*)\] x \[([\d, ]*)\]", rest)
    first, second = found.groups() if found else ("", "")
    return [int(part) for part in re.findall(r"\d+", first)], [int(part) for part in re.findall(r"\d+", second)]


def _convolution(rest: str, shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]) -> Convolution:
    found = re.search(r"dim_numbers = \[([^\]]*)\]x\[([^\]]*)\]->\[([^\]]*)\]", rest)
    if found is None:
        raise CaptureFailed("a convolution of the StableHLO file says no dim_numbers")
    ones = [1] * (len(shapes[0]) - 2)

    def places(labels: str, first: str, second: str) -> list[int]:
        listed = labels.replace(" ", "").split(",")
        return [listed.index(label) for label in (first, second, *map(str, range(len(ones))))]

    return Convolution(
        shapes=shapes, dims=(places(found[1], "b", "f"), places(found[2], "o", "i"), places(found[3], "b", "f")),
        groups=math.prod(int(n) for n in re.findall(r"(?:batch|feature)_group_count = (\d+)", rest)),
        strides=_whole(rest, "stride") or ones, left_dilation=_whole(rest, "lhs_dilate") or ones,
        right_dilation=_whole(rest, "rhs_dilate") or ones, is_reversed="reverse = [true" in rest,
    )  # fmt: skip
