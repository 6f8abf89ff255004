"""A recipe written in Python to the tree of what it sets: its syntax is read, no line of it is run."""

import ast
from typing import Any

from traincast.errors import InvalidInput, did_you_mean

MOST_CALLS = 12
_UNKNOWN = object()
_PREFERRED = ("pretrain_recipe", "finetune_recipe", "recipe", "main", "config")


class Unknown:
    """A value that only running the file would tell."""


def read_python(text: str, *, name: str) -> dict[str, Any]:
    """What a recipe function sets. `name` may end in ':function'; without it the recipe of the file is taken."""
    file, _, wanted = name.rpartition(":") if ".py:" in name else (name, "", "")
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise InvalidInput(f"{file} is not Python that can be read: {error}") from error
    reader = _Reader(module)
    if not reader.functions:
        return _plain(reader.run_body(module.body, {}))
    chosen = _choose(file, wanted, reader)
    tree = reader.call(chosen, [], {})
    found = _plain(tree) if isinstance(tree, dict) else {}
    if not found:
        raise InvalidInput(f"{file}: {chosen} sets nothing that can be read without running it")
    return {
        **found,
        "program": "recipe",
        "recipe": chosen,
        **({"recipe.conditions": "; ".join(reader.skipped)} if reader.skipped else {}),
    }


def _choose(file: str, wanted: str, reader: "_Reader") -> str:
    names = [
        name for name, node in reader.functions.items() if any(isinstance(part, ast.Return) for part in ast.walk(node))
    ]
    if wanted:
        if wanted not in reader.functions:
            raise InvalidInput(
                f"{file} has no function {wanted!r}; it has {', '.join(names)}{did_you_mean(wanted, names)}"
            )
        return wanted
    for name in _PREFERRED:
        if name in names:
            return name
    recipes = [name for name in names if not name.startswith("_")]
    if len(recipes) != 1:
        raise InvalidInput(
            f"{file} has the recipes {', '.join(recipes)}; name one: --config {file}:{(recipes or names or [''])[0]}"
        )
    return recipes[0]


class _Reader:
    """Literals, attributes that are set, and calls of functions of the same file."""

    def __init__(self, module: ast.Module) -> None:
        self.functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
        self.skipped: list[str] = []
        self._depth = 0
        self._globals: dict[str, Any] = {}
        for node in module.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self._globals[node.targets[0].id] = self.value(node.value, self._globals)

    def call(self, name: str, args: list[Any], named: dict[str, Any]) -> Any:
        node = self.functions[name]
        parameters = [*node.args.posonlyargs, *node.args.args]
        names: dict[str, Any] = dict(self._globals)
        defaults = node.args.defaults
        for parameter, default in zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True):
            names[parameter.arg] = self.value(default, self._globals)
        for parameter, usual in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            if usual is not None:
                names[parameter.arg] = self.value(usual, self._globals)
        names.update({parameter.arg: value for parameter, value in zip(parameters, args, strict=False)})
        names.update(named)
        self._depth += 1
        if self._depth > MOST_CALLS:
            self._depth -= 1
            return Unknown()
        try:
            return self.run_body(node.body, names)
        finally:
            self._depth -= 1

    def run_body(self, body: list[ast.stmt], names: dict[str, Any]) -> Any:
        """The value that a body returns; of a file without functions, the names that it sets."""
        returned = self._run(body, names)
        return names if returned is _UNKNOWN else returned

    def _run(self, body: list[ast.stmt], names: dict[str, Any]) -> Any:
        for statement in body:
            if isinstance(statement, ast.Return):
                return self.value(statement.value, names) if statement.value is not None else None
            if isinstance(statement, ast.Assign):
                value = self.value(statement.value, names)
                for target in statement.targets:
                    self._assign(target, value, names)
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                self._assign(statement.target, self.value(statement.value, names), names)
            elif isinstance(statement, ast.If):
                truth = self.value(statement.test, names)
                if isinstance(truth, Unknown):
                    self.skipped.append(
                        f"line {statement.lineno} has a condition that only a run would tell; what it guards is left out"
                    )
                    continue
                returned = self._run(statement.body if truth else statement.orelse, names)
                if returned is not _UNKNOWN:
                    return returned
        return _UNKNOWN

    def _assign(self, target: ast.expr, value: Any, names: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Attribute):
            place = self._place(target.value, names)
            if place is not None:
                place[target.attr] = value

    def _place(self, node: ast.expr, names: dict[str, Any]) -> dict[str, Any] | None:
        """The table that `cfg.model` is, made where it is not there yet."""
        if isinstance(node, ast.Name):
            if not isinstance(names.get(node.id), dict):
                names[node.id] = {}
            found: dict[str, Any] = names[node.id]
            return found
        if isinstance(node, ast.Attribute):
            outer = self._place(node.value, names)
            if outer is None:
                return None
            if not isinstance(outer.get(node.attr), dict):
                outer[node.attr] = {}
            inner: dict[str, Any] = outer[node.attr]
            return inner
        return None

    def value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return names.get(node.id, Unknown())
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.value(part, names) for part in node.elts]
        if isinstance(node, ast.Dict):
            return {
                str(key.value): self.value(value, names)
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant)
            }
        if isinstance(node, ast.Attribute):
            return self._attribute(node, names)
        if isinstance(node, ast.Call):
            return self._called(node, names)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
            return _turned(node.op, self.value(node.operand, names))
        if isinstance(node, ast.BinOp):
            return self._calculated(node, names)
        if isinstance(node, ast.BoolOp):
            parts = [self.value(part, names) for part in node.values]
            if any(isinstance(part, (Unknown, dict)) for part in parts):
                return Unknown()
            wanted = isinstance(node.op, ast.Or)
            return next((part for part in parts if bool(part) == wanted), parts[-1])
        return self._compared(node, names)

    @staticmethod
    def _is_foreign(node: ast.expr, names: dict[str, Any]) -> bool:
        """A class or function of another module, handed over to be built later."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id not in names

    def _attribute(self, node: ast.Attribute, names: dict[str, Any]) -> Any:
        outer = self.value(node.value, names)
        if isinstance(outer, dict) and node.attr in outer:
            return outer[node.attr]
        # torch.bfloat16 and the like are known by their last word.
        root = node.value
        return node.attr if isinstance(root, ast.Name) and root.id not in names else Unknown()

    def _calculated(self, node: ast.BinOp, names: dict[str, Any]) -> Any:
        left, right = self.value(node.left, names), self.value(node.right, names)
        if not all(isinstance(side, (int, float)) and abs(side) < 1e15 for side in (left, right)):
            return Unknown()
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.FloorDiv) and right:
            return left // right
        return Unknown()

    def _compared(self, node: ast.expr, names: dict[str, Any]) -> Any:
        """Whether a value is None, equal or above another, where both are known."""
        if not (isinstance(node, ast.Compare) and len(node.ops) == 1):
            return Unknown()
        left, right = self.value(node.left, names), self.value(node.comparators[0], names)
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            return Unknown()
        operator = node.ops[0]
        if isinstance(operator, (ast.Is, ast.Eq)):
            return left == right
        if isinstance(operator, (ast.IsNot, ast.NotEq)):
            return left != right
        if isinstance(operator, ast.In) and isinstance(right, list):
            return left in right
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            return (
                left > right
                if isinstance(operator, ast.Gt)
                else left < right
                if isinstance(operator, ast.Lt)
                else Unknown()
            )
        return Unknown()

    def _called(self, node: ast.Call, names: dict[str, Any]) -> Any:
        """A function of the file is followed; of others the name and what they are given are kept."""
        given = {keyword.arg: self.value(keyword.value, names) for keyword in node.keywords if keyword.arg}
        args = [self.value(part, names) for part in node.args]
        if isinstance(node.func, ast.Name) and node.func.id in self.functions:
            return self.call(node.func.id, args, given)
        asked = self._asked(node, args, names)
        return self._built(node, args, given, names) if asked is None else asked

    def _asked(self, node: ast.Call, args: list[Any], names: dict[str, Any]) -> Any:
        """`text.lower()` and `isinstance(x, str)`, which recipes ask of their arguments; None: another call."""
        if isinstance(node.func, ast.Attribute) and node.func.attr == "lower" and not args:
            text = self.value(node.func.value, names)
            return text.lower() if isinstance(text, str) else Unknown()
        if isinstance(node.func, ast.Name) and node.func.id == "isinstance" and len(node.args) == 2:
            known = ast.unparse(node.args[1]).startswith("str") and not isinstance(args[0], Unknown)
            return isinstance(args[0], str) if known else Unknown()
        return None

    def _built(self, node: ast.Call, args: list[Any], given: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
        callee = ast.unparse(node.func)[:200]
        built: dict[str, Any] = {"_target_": _short(callee) if "(" not in callee else callee, **given}
        texts = [part for part in args if isinstance(part, (str, int)) and not isinstance(part, bool)]
        if texts:
            built["_args_"] = texts
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
            inner = self._called(node.func.value, names)
            if isinstance(inner, dict):
                built = {**inner, **{key: value for key, value in built.items() if key != "_target_"}}
        if node.args and isinstance(node.args[0], (ast.Name, ast.Attribute)) and self._is_foreign(node.args[0], names):
            built["_target_"] = ast.unparse(node.args[0]).rpartition(".")[2]
            built["_args_"] = [part for part in texts if part != built["_target_"]]
        tables = [part for part in args if isinstance(part, dict)]
        return {**built, **(tables[0] if len(tables) == 1 and not given else {})}


def _short(callee: str) -> str:
    """The last word of a name; `FullAC.Config` is known by the class whose configuration it is."""
    owner, _, last = callee.rpartition(".")
    word = owner.rpartition(".")[2]
    return word if last == "Config" and word[:1].isupper() else last


def _plain(tree: Any) -> dict[str, Any]:
    """Only what is known; a list of things that are built is a table of them by name."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, list) and value and all(isinstance(part, dict) and "_target_" in part for part in value):
            value = {str(part["_target_"]): part for part in value}
        if isinstance(value, dict):
            found[str(key)] = _plain(value)
        elif not isinstance(value, Unknown) and not (
            isinstance(value, list) and any(isinstance(part, (Unknown, dict)) for part in value)
        ):
            found[str(key)] = value
    return found


def _turned(op: ast.unaryop, inner: Any) -> Any:
    """Not or minus a value."""
    if isinstance(inner, Unknown):
        return inner
    if isinstance(op, ast.Not):
        return not inner
    return -inner if isinstance(inner, (int, float)) else Unknown()
