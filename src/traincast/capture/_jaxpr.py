"""A jaxpr as text, as JAX prints it, to the objects that JAX itself holds; neither JAX nor the program is needed.

Both `str(jax.make_jaxpr(step)(...))` and `.pretty_print(name_stack=True)` are read. The second says which operations are of the
backward pass; of the first that is told by what the operations read.
"""

import ast
import bisect
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traincast.errors import CaptureFailed, InvalidInput

MOST_BYTES = 256 * 2**20
MOST_DEPTH = 100
MOST_NUMEL = 2**50
_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32", "i16": "int16",
    "i8": "int8", "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "bool": "bool", "c64": "complex64",
    "c128": "complex128",
}  # fmt: skip
_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_BINDER = re.compile(r"([A-Za-z_]\w*):")
_TYPE = re.compile(r"(?:Ref\{)?([A-Za-z]\w*(?:<\w+>)?)\[([^\]]*)\]\}?(?:\{[^{}]*\})?")
_LITERAL = re.compile(r"(-?(?:inf|nan|\d[\w.+-]*)|True|False)(?::([A-Za-z]\w*)\[[^\]]*\](?:\{[^{}]*\})?)?")
_PRIMITIVE = re.compile(r"[A-Za-z_][\w.-]*")
_COMMENT = re.compile(r"[ \t]+# \[([^\n]*)\][ \t]*$", re.MULTILINE)
_RESULTS = re.compile(r"in\s*\(")
_KEY = re.compile(r"\s+[A-Za-z_]\w*=")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_CONVOLUTION = re.compile(r"ConvDimensionNumbers\(lhs_spec=(\([^)]*\)), rhs_spec=(\([^)]*\)), out_spec=(\([^)]*\))\)")
_SPEC = re.compile(r"(?:PartitionSpec|P)\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class Aval:
    """Shape and dtype, by the names that JAX gives them."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Variable:
    """A result of an equation or an input."""

    aval: Aval


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Literal:
    """A number in the text."""

    aval: Aval
    val: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Primitive:
    """What an equation does."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """The scopes in which an equation was made."""

    name_stack: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Equation:
    """One line of a jaxpr, with the fields that JAX has."""

    primitive: Primitive
    params: dict[str, Any]
    invars: list[Any]
    outvars: list[Any]
    source_info: SourceInfo


@dataclass(slots=True, kw_only=True, eq=False)
class Jaxpr:
    """A function: constants, inputs, equations and results."""

    constvars: list[Any] = field(default_factory=list)
    invars: list[Any] = field(default_factory=list)
    eqns: list[Equation] = field(default_factory=list)
    outvars: list[Any] = field(default_factory=list)

    @property
    def jaxpr(self) -> "Jaxpr":
        """JAX wraps a jaxpr and its constants in another object."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionNumbers:
    """Which dim is which, of the data, the kernel and the result."""

    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshText:
    """Axes of a mesh with their sizes."""

    shape: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingText:
    """How an array is spread."""

    mesh: MeshText
    spec: tuple[Any, ...]


def parse_jaxpr(path: str | Path) -> tuple[Jaxpr, bool]:
    """The program in a file, and whether the text says in which scopes its equations were made."""
    file = Path(path)
    try:
        if file.stat().st_size > MOST_BYTES:
            raise InvalidInput(
                f"{path} is larger than {MOST_BYTES // 2**20} MiB; a jaxpr with scans over layers is short"
            )
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"{path} cannot be read as text: {error}; write it with str(jax.make_jaxpr(step)(...))"
        ) from error
    if "lambda" not in text:
        raise InvalidInput(f"{path} holds no jaxpr; write it with str(jax.make_jaxpr(step)(...))")
    reader = _Reader(text)
    return reader.program(), reader.has_scopes


class _Reader:
    def __init__(self, text: str) -> None:
        stacks = [(found.start(), found[1]) for found in _COMMENT.finditer(text)]
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self._stacks = {bisect.bisect_right(self._starts, position): stack for position, stack in stacks}
        self.has_scopes = any("transpose(" in stack or "jvp(" in stack for _, stack in stacks)
        self.text = _COMMENT.sub(lambda found: " " * len(found[0]), text)
        self.at = 0
        self._depth = 0
        self._named: dict[str, Jaxpr] = {}
        self._waiting: list[tuple[dict[str, Any], str]] = []
        """Parameters that may name a function, which may be defined later."""

    def fail(self, wanted: str) -> CaptureFailed:
        line = bisect.bisect_right(self._starts, self.at)
        near = " ".join(self.text[self.at : self.at + 60].split())
        return CaptureFailed(f"line {line} of the jaxpr cannot be read: {wanted} wanted, {near!r} found")

    def skip(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def has(self, token: str) -> bool:
        self.skip()
        return self.text.startswith(token, self.at)

    def take(self, token: str) -> None:
        if not self.has(token):
            raise self.fail(repr(token))
        self.at += len(token)

    def _match(self, pattern: re.Pattern[str], wanted: str) -> re.Match[str]:
        self.skip()
        found = pattern.match(self.text, self.at)
        if found is None:
            raise self.fail(wanted)
        self.at = found.end()
        return found

    def program(self) -> Jaxpr:
        """Functions that are used more than once come first, by name."""
        while self.has("let "):
            self.take("let ")
            name = self._match(_PRIMITIVE, "a name")[0]
            self.take("=")
            self._named[name] = self.function()
            if self.has("in"):
                self.take("in")
        whole = self.function()
        for params, key in self._waiting:
            # A damaged text may name one parameter twice; the second time it is a function already.
            if isinstance(params[key], str):
                params[key] = self._resolve(params[key])
        if not whole.eqns:
            raise CaptureFailed("the jaxpr computes nothing")
        return whole

    def _resolve(self, text: str) -> Any:
        names = text.strip("()").replace(",", " ").split()
        if not names or not all(name in self._named for name in names):
            return text
        functions = tuple(self._named[name] for name in names)
        return functions if text.startswith("(") else functions[0]

    def function(self) -> Jaxpr:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise CaptureFailed(f"the jaxpr nests more than {MOST_DEPTH} functions")
        self.take("{")
        self.take("lambda")
        scope: dict[str, Variable] = {}
        made = Jaxpr(constvars=list(self._binders(scope)))
        self.take(";")
        made.invars = list(self._binders(scope))
        self.take(".")
        self.take("let")
        while not self._ends():
            made.eqns.append(self._equation(scope))
            if self.has(";"):
                self.take(";")
        self.take("in")
        self.take("(")
        made.outvars = [self._atom(scope, comma=True) for _ in iter(lambda: self.has(")"), True)]
        self.take(")")
        self.take("}")
        self._depth -= 1
        return made

    def _ends(self) -> bool:
        """Variables may be called `in` too; the keyword stands before a bracket."""
        self.skip()
        return _RESULTS.match(self.text, self.at) is not None

    def _binders(self, scope: dict[str, Variable]) -> Iterator[Variable]:
        while True:
            self.skip()
            found = _BINDER.match(self.text, self.at)
            if found is None:
                return
            self.at = found.end()
            scope[found[1]] = variable = Variable(aval=self._type())
            yield variable

    def _type(self) -> Aval:
        found = self._match(_TYPE, "a type such as f32[8,16]")
        sizes = [part.partition("@")[0].strip() for part in found[2].split(",") if part.strip()]
        if not all(part.isdigit() and len(part) < 16 for part in sizes):
            listed = " ".join(found[2].split())[:80]
            raise CaptureFailed(f"the jaxpr has an array of the sizes [{listed}]; every size must be a number")
        shape = tuple(int(part) for part in sizes)
        if math.prod(shape) > MOST_NUMEL:
            raise CaptureFailed(f"the jaxpr has an array of {math.prod(shape):,} elements")
        # Keys of random numbers and other opaque types are small.
        return Aval(shape=shape, dtype=_DTYPES.get(found[1], found[1] if found[1].startswith("f8") else "uint32"))

    def _opens_equation(self) -> bool:
        """Whether binders and an equals sign follow."""
        start = self.at
        try:
            scope: dict[str, Variable] = {}
            return bool(list(self._binders(scope))) and self.has("=")
        except CaptureFailed:
            return False
        finally:
            self.at = start

    def _equation(self, scope: dict[str, Variable]) -> Equation:
        self.skip()
        stack = self._stacks.get(bisect.bisect_right(self._starts, self.at), "")
        if _BINDER.match(self.text, self.at) and not self._opens_equation():
            raise self.fail("an equation; programs that write into references are not read")
        made: dict[str, Variable] = {}
        results = list(self._binders(made))
        if results:
            self.take("=")
        name = self._match(_PRIMITIVE, "an operation")[0]
        params = self._params() if self.text.startswith("[", self.at) else {}
        arguments = []
        while not self._ends() and not self.has(";") and not self._follows():
            arguments.append(self._atom(scope))
        scope |= made
        return Equation(
            primitive=Primitive(name=name), params=params, invars=arguments, outvars=results,
            source_info=SourceInfo(name_stack=stack),
        )  # fmt: skip

    def _follows(self) -> bool:
        """Whether the next equation begins: with results, or with an operation that has none."""
        self.skip()
        if _BINDER.match(self.text, self.at):
            return self._opens_equation()
        found = _PRIMITIVE.match(self.text, self.at)
        return found is not None and self.text.startswith("[", found.end())

    def _atom(self, scope: dict[str, Variable], *, comma: bool = False) -> Any:
        self.skip()
        named = _NAME.match(self.text, self.at)
        if named is not None and named[0] in scope and not self.text.startswith(":", named.end()):
            self.at = named.end()
            found: Any = scope[named[0]]
        else:
            text = self._match(_LITERAL, "a variable that was defined, or a number")
            found = Literal(aval=Aval(shape=(), dtype=_DTYPES.get(text[2] or "f32", "float32")), val=_number(text[1]))
        if comma and self.has(","):
            self.take(",")
        return found

    def _params(self) -> dict[str, Any]:
        self.take("[")
        params: dict[str, Any] = {}
        while not self.has("]"):
            key = self._match(_NAME, "a name of a parameter")[0]
            self.take("=")
            params[key] = self._value()
            if isinstance(params[key], str) and key != "name":
                self._waiting.append((params, key))
        self.take("]")
        if not self.has_scopes and params.get("differentiated") is True and isinstance(params.get("jaxpr"), Jaxpr):
            _mark_rematerialised(params["jaxpr"])
        return params

    def _value(self) -> Any:
        """A nested function, several of them, or text up to the next parameter."""
        if self.has("{ lambda"):
            return self.function()
        start = self.at
        if self.has("("):
            self.at += 1
            if self.has("{ lambda"):
                functions = []
                while not self.has(")"):
                    functions.append(self.function())
                    if self.has(","):
                        self.take(",")
                self.take(")")
                return tuple(functions)
        self.at = start
        return self._meaning(self._plain())

    def _plain(self) -> str:
        start, waiting, quote = self.at, [], ""
        while self.at < len(self.text):
            letter = self.text[self.at]
            if quote:
                quote = "" if letter == quote else quote
            elif letter in "'\"":
                quote = letter
            elif letter in _CLOSING:
                waiting.append(_CLOSING[letter])
            elif waiting and letter == waiting[-1]:
                waiting.pop()
            elif not waiting and (letter == "]" or (letter.isspace() and _KEY.match(self.text, self.at))):
                return self.text[start : self.at]
            self.at += 1
        raise self.fail("the end of the parameters")

    def _meaning(self, text: str) -> Any:
        text = " ".join(text.split())
        convolution = _CONVOLUTION.fullmatch(text)
        if convolution is not None:
            specs = [tuple(int(n) for n in re.findall(r"\d+", group)) for group in convolution.groups()]
            return ConvolutionNumbers(lhs_spec=specs[0], rhs_spec=specs[1], out_spec=specs[2])
        if text.startswith(("Mesh(", "AbstractMesh(")):
            return _mesh(text)
        if _SPEC.search(text):
            found = _spread(text)
            return found if text.startswith("(") else found[0] if found else None
        try:
            return ast.literal_eval(re.sub(r"np\.\w+\((-?\d+)\)", r"\1", text))
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return text


def _number(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return math.nan


def _mark_rematerialised(body: Jaxpr) -> None:
    """What a checkpoint runs in the backward pass; which of it is a gradient is told by what it reads."""
    for at, equation in enumerate(body.eqns):
        if not equation.source_info.name_stack:
            body.eqns[at] = Equation(
                primitive=equation.primitive, params=equation.params, invars=equation.invars, outvars=equation.outvars,
                source_info=SourceInfo(name_stack="rematted_computation"),
            )  # fmt: skip


def _mesh(text: str) -> MeshText:
    return MeshText(shape={name: int(size) for name, size in re.findall(r"'([^']*)': (\d+)", text)})


def _spread(text: str) -> tuple[Any, ...]:
    """Shardings, or bare specs where the mesh stands elsewhere, in their order; None: not said."""
    found: list[Any] = []
    for part in re.split(r"(?=NamedSharding\(|UnspecifiedValue)", text):
        if part.startswith("UnspecifiedValue"):
            found.append(None)
            continue
        specs = [_spec(part, match.end()) for match in _SPEC.finditer(part)]
        if part.startswith("NamedSharding("):
            found += [ShardingText(mesh=_mesh(part), spec=spec) for spec in specs[:1]]
        else:
            found += specs
    return tuple(found)


def _spec(text: str, start: int) -> tuple[Any, ...]:
    depth, end = 1, start
    while end < len(text) and depth:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    inner = text[start : end - 1].strip(" ,")
    try:
        return tuple(ast.literal_eval(f"({inner},)")) if inner else ()
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return ()
