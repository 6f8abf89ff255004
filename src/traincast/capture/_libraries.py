"""Kernels of other libraries, found by name where a model calls them, recorded as the kernel and said.

The rules are a document of the catalogue. A library that needs CUDA cannot run on tensors without memory; what its kernel
computes can be counted from the shapes of its arguments.
"""

import ast
import functools
import inspect
import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from traincast.capture import _fused as fused
from traincast.capture._kernels import run_kernel
from traincast.capture._operators import Call, Rule, Work, work
from traincast.capture._values import Values
from traincast.catalog import kernel_rules
from traincast.errors import CaptureFailed

Patch = Callable[[Any, str, Any], None]
Given = Mapping[str, Any]

_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


def _rows(value: Any) -> int:
    return sum(int(part.shape[0]) for part in value) if isinstance(value, (list, tuple)) else int(value.shape[0])


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "numel": lambda value: int(value.numel()) if value is not None else 0,
    "size": lambda value, dim: int(value.shape[dim]),
    "rows": _rows,
    "side": lambda value, place: int(value[place]) if isinstance(value, (list, tuple)) else int(value),
    "where": lambda condition, yes, no: yes if condition else no,
    "number": lambda value, default: default if value is None else value,
}


def evaluate(text: str, given: Given) -> float:
    """Arithmetic over the arguments of a call, as the document writes it."""

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Expression(body=body):
                return value(body)
            case ast.Constant(value=int() | float() as constant):
                return constant
            case ast.Name(id=name) if name in given:
                return given[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return _ARITHMETIC[type(op)](value(left), value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
                return _FUNCTIONS[name](*(value(argument) for argument in args))
        raise CaptureFailed(
            f"the rule {text!r} of a kernel asks for {ast.unparse(node)!r}, which the call does not have"
        )

    return float(value(ast.parse(text, mode="eval")))


# what a rule does


def _attention(rule: Given, given: Given, values: Values) -> Any:
    layout = str(rule.get("layout", "bhsd"))
    order = [layout.index(dim) for dim in "bhsd"]
    query, key, value = (given[name].permute(order) for name in ("query", "key", "value"))
    mask = given.get("bias")
    is_causal = bool(given.get("causal")) or (mask is not None and "causal" in type(mask).__name__.lower())
    output = fused.attention(query, key, value, dropout_p=float(given.get("dropout") or 0.0), is_causal=is_causal)
    back = output.permute(["bhsd".index(dim) for dim in layout])
    return back.flatten(-2) if rule.get("flatten") else back


def _normal(name: str) -> Callable[[Given, Given, Values], Any]:
    def run(rule: Given, given: Given, values: Values) -> Any:
        data, weight = given["input"], given.get("weight")
        shape = tuple(weight.shape) if weight is not None else data.shape[-1:]
        if name == "rms_norm":
            return F.rms_norm(data, shape, weight)
        return F.layer_norm(data, shape, weight, given.get("bias"))

    return run


def _linear(rule: Given, given: Given, values: Values) -> Any:
    bias = given.get("bias")
    return F.linear(given["input"], given["weight"], bias if bias is not None and bias.numel() else None)


def _norm_linear(rule: Given, given: Given, values: Values) -> Any:
    norm = "layer_norm" if given.get("norm_bias") is not None else "rms_norm"
    normal = _normal(norm)(
        rule, {"input": given["input"], "weight": given["norm_weight"], "bias": given.get("norm_bias")}, values
    )
    return _linear(rule, {**given, "input": normal}, values)


def _norm_mlp(rule: Given, given: Given, values: Values) -> Any:
    hidden = _norm_linear(rule, given, values)
    second = given["second_weight"]
    if hidden.shape[-1] == 2 * second.shape[-1]:
        gate, up = hidden.chunk(2, -1)
        hidden = F.silu(gate) * up
    else:
        hidden = F.gelu(hidden)
    return _linear(rule, {"input": hidden, "weight": second, "bias": given.get("second_bias")}, values)


def _linear_cross_entropy(rule: Given, given: Given, values: Values) -> Any:
    """Scores are made and dropped in chunks; the backward pass makes them again, so that none are kept."""
    data, weight, target = given["input"], given["weight"], given["target"]
    flop = 2.0 * data.numel() * weight.shape[0]
    return run_kernel(str(rule["library"]), [data, weight, target], shape=(), dtype=torch.float32, flop=flop)


def _quantised_linear(rule: Given, given: Given, values: Values) -> Any:
    data, weight, module = given["input"], given["weight"], given["module"]
    shape = (*data.shape[:-1], int(module.out_features))
    flop = 2.0 * data.numel() * module.out_features
    output = run_kernel(str(rule["library"]), [data, weight.detach()], shape=shape, dtype=data.dtype, flop=flop)
    return output if given.get("bias") is None else output + given["bias"].to(output.dtype)


def _keep(rule: Given, given: Given, values: Values) -> Any:
    return values.keep_boxes(int(given["boxes"].shape[0]))


def _kernel(rule: Given, given: Given, values: Values) -> Any:
    """Any other function: one kernel over all its tensors."""
    like = given[rule["like"]]
    shape = [int(evaluate(size, given)) for size in rule["shape"]] if "shape" in rule else like.shape
    inputs = [leaf for item in given.values() for leaf in (item if isinstance(item, (list, tuple)) else [item])]
    tensors = [leaf for leaf in inputs if isinstance(leaf, torch.Tensor)]
    flop = evaluate(rule["flop"], given)
    output = run_kernel(str(rule["library"]), tensors, shape=shape, dtype=like.dtype, flop=flop)
    state = rule.get("state")
    if state is not None and given.get(state["if"]):
        return output, like.new_zeros([int(evaluate(size, given)) for size in state["shape"]])
    return output


FORMS: dict[str, Callable[[Given, Given, Values], Any]] = {
    "kernel": _kernel, "attention": _attention, "layer_norm": _normal("layer_norm"), "rms_norm": _normal("rms_norm"),
    "linear": _linear, "norm_linear": _norm_linear, "norm_mlp": _norm_mlp, "linear_cross_entropy": _linear_cross_entropy,
    "quantised_linear": _quantised_linear, "keep": _keep,
}  # fmt: skip
"""What a rule of the document may say that a kernel does."""


# where rules apply


def replace_functions(patch: Patch, values: Values, *, fast: bool) -> None:
    """Functions of libraries that are loaded, wherever they were imported to; `always` holds for those that cannot run."""
    for rule in kernel_rules()["functions"]:
        home, _, path = str(rule["name"]).partition(":")
        module = sys.modules.get(home)
        if module is None or not (fast or rule.get("always")):
            continue
        *owners, attribute = path.split(".")
        owner: Any = module
        for name in owners:
            owner = getattr(owner, name, None)
        original = getattr(owner, attribute, None)
        if original is None or hasattr(original, "_traincast"):
            continue
        instead = _function(rule, original, values)
        if owners:
            patch(owner, attribute, staticmethod(instead))
            continue
        for other in list(sys.modules.values()):
            for name, item in list(getattr(other, "__dict__", {}).items()):
                if item is original:
                    patch(other, name, instead)


def _function(rule: Given, original: Any, values: Values) -> Callable[..., Any]:
    names = rule.get("parameters")
    signature = None if names else inspect.signature(original)
    where = str(rule["name"]).partition(":")[2]

    def run(*args: Any, **kwargs: Any) -> Any:
        if signature is None:
            given = {**dict(zip(names or (), args, strict=False)), **kwargs}
        else:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = dict(bound.arguments)
        if not rule.get("always"):
            _say(values, where, rule)
        form = FORMS[rule.get("form", "kernel")]
        renamed = {role: given.get(name) for role, name in rule["arguments"].items()} if "arguments" in rule else given
        output = form(rule, renamed, values)
        return (output, None) if rule.get("pair") and not isinstance(output, tuple) else output

    run._traincast = True  # type: ignore[attr-defined]
    return run


def replace_modules(model: nn.Module, patch: Patch, values: Values) -> None:
    """Modules of libraries, by their class and the package that it comes from."""
    rules = kernel_rules()["modules"]
    for part in model.modules():
        rule = _rule_of(type(part), rules)
        if rule is not None and "forward" not in part.__dict__:
            patch(part, "forward", _forward(rule, part, values))


def _rule_of(kind: type, rules: Sequence[Given]) -> Given | None:
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        for rule in rules:
            if base.__name__ == rule["class"] and package == rule["package"]:
                return rule
    return None


def _forward(rule: Given, part: nn.Module, values: Values) -> Callable[..., Any]:
    names = list(rule.get("inputs", ("input",)))
    layout = getattr(part, str(rule.get("layout_attribute", "")), None)
    known = {**rule, "layout": layout} if isinstance(layout, str) and sorted(layout) == sorted("bhsd") else rule

    def run(*args: Any, **kwargs: Any) -> Any:
        _say(values, type(part).__name__, rule)
        given = {**dict(zip(names, args, strict=False)), **{key: item for key, item in kwargs.items() if key in names}}
        weights = {role: getattr(part, name, None) for role, name in rule.get("weights", {}).items()}
        weights = {role: item for role, item in weights.items() if isinstance(item, torch.Tensor)}
        return FORMS[rule["form"]](known, {**weights, **given, "module": part}, values)

    return run


def _say(values: Values, what: str, rule: Given) -> None:
    values.assumptions[
        f"{what} is counted as the kernel of {rule['library']}; --kernels plain runs the model's own code"
    ] = None


def like_optimizer(optimizer: Any) -> str | None:
    """The algorithm of a library's optimizer, whose own step needs the device."""
    rule = _rule_of(type(optimizer), kernel_rules()["optimizers"])
    return None if rule is None else str(rule["like"])


def operator_rules() -> dict[str, Rule]:
    """Operators that libraries register with PyTorch."""
    return {str(rule["name"]): functools.partial(_operator, rule) for rule in kernel_rules()["operators"]}


def _operator(rule: Given, call: Call) -> Work:
    flop = evaluate(str(rule["flop"]), call.arguments)
    if not math.isfinite(flop):
        raise CaptureFailed(f"the rule of {rule['name']} gives {flop} FLOP")
    return work(call, "other", flop, {"function": str(rule["library"])})
