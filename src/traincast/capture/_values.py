"""Real values behind fake tensors where they are small enough to matter, and what is assumed where they are not known."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorDeviceMismatchError
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from traincast.capture._guards import find_guard

FLOAT_LIMIT = 2**18
WHOLE_LIMIT = 4 * 2**20
"""Values are followed through float tensors up to the first number of elements and through integer ones up to the second."""

PATIENCE = 64
"""Unknown conditions that may be read in one module before one of them is answered the other way."""

_SLOT = "_traincast_value"
_ATEN = torch.ops.aten
_RANDOM = {_ATEN.rand.default, _ATEN.rand_like.default}
_RANDOM_NAMES = ("bernoulli", "uniform", "normal", "random", "exponential", "dropout", "rand", "multinomial", "empty")
_EMPTY = {_ATEN.empty.memory_format, _ATEN.empty_strided.default, _ATEN.new_empty.default, _ATEN.empty_like.default}
_READERS = {_ATEN._local_scalar_dense.default, _ATEN.equal.default}
_RAGGED = {
    _ATEN.nonzero.default, _ATEN.masked_select.default, _ATEN._unique2.default, _ATEN.unique_dim.default,
    _ATEN.unique_consecutive.default, _ATEN.repeat_interleave.Tensor, _ATEN.bincount.default,
    _ATEN._pack_padded_sequence.default, _ATEN._pack_padded_sequence_backward.default,
}  # fmt: skip


_FACTORISATIONS = {
    _ATEN.linalg_cholesky_ex.default, _ATEN.linalg_inv_ex.default, _ATEN._linalg_solve_ex.default,
    _ATEN.linalg_lu_factor_ex.default, _ATEN.linalg_ldl_factor_ex.default,
}  # fmt: skip
"""Their last result says which of them failed."""
_DOUBTFUL = "_traincast_doubtful"
"""A mark on conditions that hardly ever hold: a value is infinite or no number."""
_DOUBTS = {
    _ATEN.eq.Scalar, _ATEN.ne.Tensor, _ATEN.isinf.default, _ATEN.isnan.default, _ATEN.any.default, _ATEN.any.dim,
    _ATEN.logical_or.default, _ATEN.bitwise_or.Tensor,
}  # fmt: skip


def _doubt(func: Any, args: tuple[Any, ...], output: Any) -> None:
    """Marks a condition on infinities, and what is made of such conditions only."""
    if func is _ATEN.eq.Scalar:
        holds = isinstance(args[1], float) and math.isinf(args[1])
    elif func is _ATEN.ne.Tensor:
        holds = args[0] is args[1]
    elif func in (_ATEN.isinf.default, _ATEN.isnan.default):
        holds = True
    else:
        holds = all(part.__dict__.get(_DOUBTFUL) for part in args if isinstance(part, torch.Tensor))
    if holds and isinstance(output, FakeTensor):
        output.__dict__[_DOUBTFUL] = True


def _run_on_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Zeros that forward-mode differentiation makes (torch.func.hessian) belong to no device; they join the others."""
    try:
        return func(*args, **kwargs)
    except FakeTensorDeviceMismatchError:

        def join(leaf: Any) -> Any:
            is_nowhere = isinstance(leaf, torch.Tensor) and leaf.device.type == "meta"
            return torch.zeros(leaf.shape, dtype=leaf.dtype) if is_nowhere else leaf

        return func(*tree_map(join, args), **tree_map(join, kwargs))


class Value:
    """What a fake tensor really holds. Views share `alive`, so that an unknown write through one ends all of them."""

    __slots__ = ("alive", "origin", "real")

    def __init__(self, real: Any, alive: list[bool], origin: str = "") -> None:
        self.real = real
        self.alive = alive
        self.origin = origin


class Values:
    """Runs every operation, following known values beside the fake ones."""

    def __init__(self, *, mask_density: float = 0.5) -> None:
        self.mask_density = mask_density
        """The share of unknown conditions that hold, and of boxes that are kept."""
        self.assumptions: dict[str, None] = {}
        self.layer = ""
        self.recording = False
        self._asked: dict[tuple[bool, str], int] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _READERS:
            return self._read(func, args, kwargs)
        if func in _RAGGED:
            return self._ragged(func, args, kwargs)
        if func.namespace == "torchvision" and func._schema.name == "torchvision::nms":
            return self.keep_boxes(args[0].shape[0])
        if func is _ATEN.index.Tensor and any(_is_mask(index) for index in args[1]):
            args = (args[0], self._whole_indices(args[1]))
        if func is _ATEN._grouped_mm.default and args[0].dtype != torch.bfloat16:
            output = _grouped_product(func, args, kwargs)
        else:
            output = _run_on_host(func, args, kwargs)
        self._follow(func, args, kwargs, output)
        if func in _DOUBTS:
            _doubt(func, args, output)
        return output

    def keep_boxes(self, count: int) -> Any:
        """The positions of the boxes that non-maximum suppression keeps."""
        self._assume(f"non-maximum suppression is taken to keep {self.mask_density:.0%} of the boxes")
        with _disable_current_modes():
            kept = self._kept(count).nonzero().flatten()
        return self._wrap(kept)

    def choose(self, pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
        """torch.cond: the branch that a known condition takes, else the first."""
        known = self.get(pred) if isinstance(pred, torch.Tensor) else None
        if isinstance(pred, torch.Tensor) and known is None:
            self._assume("of torch.cond the first branch is taken")
            return true_fn(*operands)
        return (true_fn if bool(pred if known is None else known.real) else false_fn)(*operands)

    def set(self, tensor: Any, real: Any, *, origin: str = "") -> None:
        if _is_small(real):
            tensor.__dict__[_SLOT] = Value(real, [True], origin)

    def copy(self, source: Any, target: Any) -> None:
        """The value of one tensor for its twin, in the twin's dtype."""
        value = self.get(source)
        if value is not None:
            with _disable_current_modes():
                self.set(target, value.real.detach().to(target.dtype).clone())

    def get(self, tensor: Any) -> Value | None:
        if not isinstance(tensor, FakeTensor):
            if tensor.device.type == "meta" or not _is_small(tensor):
                return None
            with _disable_current_modes():
                return Value(tensor.detach(), [True])
        value: Value | None = tensor.__dict__.get(_SLOT)
        return value if value is not None and value.alive[0] else None

    def _assume(self, sentence: str) -> None:
        if not self.recording:
            return
        where = f" (in {self.layer})" if self.layer else ""
        self.assumptions[sentence + where] = None

    def _note(self, value: Value) -> None:
        if value.origin:
            self._assume(value.origin)

    def _read(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = [self.get(arg) for arg in args if isinstance(arg, torch.Tensor)]
        if all(value is not None for value in known):
            for value in known:
                if value is not None:
                    self._note(value)
            with _disable_current_modes():
                return func(*(value.real for value in known if value is not None))
        if func is _ATEN.equal.default:
            self._assume("two tensors that were compared are taken as different")
            return False
        tensor = args[0]
        if getattr(tensor, "constant", None) is not None:
            return func(*args, **kwargs)
        if tensor.__dict__.get(_DOUBTFUL):
            self._assume("values are taken as finite where the program asks")
            return False
        guard = find_guard() if tensor.dtype == torch.bool else None
        if guard is not None:
            self._assume(f"a check of the program is taken to pass ({guard[1]})")
            return guard[0]
        answer: Any = (
            self._guess_condition() if tensor.dtype == torch.bool else 0.5 if tensor.dtype.is_floating_point else 1
        )
        if tensor.dtype != torch.bool:
            # What is computed from it later agrees with what was answered.
            with _disable_current_modes():
                self.set(tensor, torch.full(tensor.shape, answer, dtype=tensor.dtype))
        if not self.recording:
            return answer
        self._assume(
            f"a {str(tensor.dtype).removeprefix('torch.')} value the program read from a tensor is taken as {answer}"
        )
        return answer

    def _guess_condition(self) -> bool:
        """True while recording and False while building ("is any weight out of range?"), but not for ever: a program that
        asks again and again waits for the other answer."""
        place = (self.recording, self.layer)
        self._asked[place] = self._asked.get(place, 0) + 1
        return self.recording != (self._asked[place] % PATIENCE == 0)

    def _ragged(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Operations whose output size depends on values."""
        known = [self.get(arg) for arg in args if isinstance(arg, torch.Tensor)]
        if func is _ATEN._pack_padded_sequence_backward.default:
            return args[0].new_empty([int(size) for size in args[1]])
        if func is _ATEN._pack_padded_sequence.default:
            return self._pack(args[0], args[1])
        if func is _ATEN.masked_select.default:
            data, mask = torch.broadcast_tensors(args[0], args[1])
            return _ATEN.index.Tensor(data, self._whole_indices([mask]))
        if all(value is not None for value in known):
            reals = iter([value.real for value in known if value is not None])
            with _disable_current_modes():
                arguments = [next(reals) if isinstance(arg, torch.Tensor) else arg for arg in args]
                results = func(*arguments, **kwargs)
            origin = next((value.origin for value in known if value is not None and value.origin), "")
            if origin:
                self._assume(origin)
            return self._wrap(results, origin=origin)
        if func is _ATEN.nonzero.default:
            return self._assume_kept(args[0])
        return self._assume_sizes(func, args, kwargs)

    def _assume_kept(self, tensor: torch.Tensor) -> Any:
        """Where an unknown condition is taken to hold."""
        size = tensor.numel()
        share = "every second element" if self.mask_density == 0.5 else f"{self.mask_density:.0%} of the elements"
        self._assume(f"a condition on unknown values is taken to hold for {share}")
        with _disable_current_modes():
            if size <= WHOLE_LIMIT:
                held = self._kept(size).reshape(tensor.shape).nonzero()
            else:
                held = torch.empty((self._num_kept(size), tensor.dim()), dtype=torch.int64, device="meta")
        return self._wrap(held)

    def _assume_sizes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Counts and different values of what is not known."""
        tensor = args[0]
        size = tensor.numel()
        if func is _ATEN.bincount.default:
            self._assume("the largest of some unknown counts is taken as the number of elements")
            return tensor.new_empty(
                max(size, int(kwargs.get("minlength", args[2] if len(args) > 2 else 0))), dtype=torch.int64
            )
        if func is _ATEN.repeat_interleave.Tensor:
            self._assume("unknown repeat counts are taken as one each")
            return tensor.new_empty(kwargs.get("output_size") or size, dtype=torch.int64)
        self._assume("unknown values are taken as all different where the program asked for the different ones")
        whole = tensor.new_empty(size, dtype=torch.int64)
        return (
            tensor.new_empty(tensor.shape if func is _ATEN.unique_dim.default else (size,)),
            whole,
            tensor.new_empty(size, dtype=torch.int64),
        )

    def _num_kept(self, size: int) -> int:
        return math.ceil(size * self.mask_density)

    def _kept(self, size: int) -> Any:
        """Evenly spread, the first one kept."""
        marks = torch.ceil(torch.arange(size + 1, dtype=torch.float64) * self.mask_density - 1e-9)
        return marks[1:] > marks[:-1] if self.mask_density != 0.5 else torch.arange(size) % 2 == 0

    def numbers(self, tensor: Any) -> Any:
        """What leaves PyTorch as numpy: the known values, else evenly spread ones, with a word."""
        value = self.get(tensor)
        with _disable_current_modes():
            if value is not None:
                self._note(value)
                return value.real.detach().numpy().copy()
            self._assume("values that the program took out of PyTorch are taken as evenly spread")
            spread = torch.arange(tensor.numel(), dtype=torch.float64) / max(1, tensor.numel())
            return spread.reshape(tensor.shape).to(tensor.dtype).numpy()

    def _pack(self, data: Any, lengths: Any) -> Any:
        value = self.get(lengths)
        length, batch = (data.shape[1], data.shape[0]) if lengths.numel() == data.shape[0] else data.shape[:2]
        if value is None:
            self._assume("sequences of unknown length are taken as full")
        with _disable_current_modes():
            known = value.real if value is not None else torch.full((batch,), length)
            sizes = (known[None, :] > torch.arange(int(known.max()))[:, None]).sum(1)
            total = int(sizes.sum())
        return data.new_empty(total, *data.shape[2:]), self._wrap(sizes)

    def _whole_indices(self, indices: Any) -> list[Any]:
        """Masks among the indices replaced by the positions they select, as the device does it."""
        whole: list[Any] = []
        for index in indices:
            if _is_mask(index):
                whole += list(self._ragged(_ATEN.nonzero.default, (index,), {}).unbind(1))
            else:
                whole.append(index)
        for tensor in whole:
            value = None if tensor is None else self.get(tensor)
            if value is not None:
                self._note(value)
        return whole

    def _wrap(self, results: Any, *, origin: str = "") -> Any:
        if isinstance(results, torch.Tensor):
            fake = torch.empty(results.shape, dtype=results.dtype)
            if results.device.type != "meta":
                self.set(fake, results, origin=origin)
            return fake
        return type(results)(self._wrap(result, origin=origin) for result in results)

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        tensors = _tensors_in((*args, *kwargs.values()))
        known = {id(tensor): value for tensor in tensors if (value := self.get(tensor)) is not None}
        if any(id(tensor) not in known for tensor in tensors):
            self._forget(func, args)
            self._spread(func, args, output)
            return
        outputs = _tensors_in((output,))
        if not outputs or not all(_is_small(tensor) for tensor in outputs):
            if not _follow_equal(func, args, kwargs, known, output):
                self._forget(func, args)
            return
        name = func._schema.name.removeprefix("aten::")
        if name.startswith("traincast") or any(word in name for word in _RANDOM_NAMES):
            self._forget(func, args)
            self._draw(func, args, output)
        elif not _run_beside(func, args, kwargs, known, tensors, outputs):
            # A value that cannot be followed is only unknown; the recording itself goes on.
            self._forget(func, args)

    def _forget(self, func: Any, args: tuple[Any, ...]) -> None:
        if not func._schema.is_mutable:
            return
        for argument, item in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in _flat((item,)):
                    if isinstance(tensor, FakeTensor):
                        value = tensor.__dict__.get(_SLOT)
                        if value is not None:
                            value.alive[0] = False

    def _draw(self, func: Any, args: tuple[Any, ...], output: Any) -> None:
        """Random numbers take their mean, so that a recording is the same every time."""
        if func in _RANDOM:
            with _disable_current_modes():
                self.set(output, torch.full(output.shape, 0.5, dtype=output.dtype))
        elif func in _EMPTY and not (output.dtype.is_floating_point or output.dtype.is_complex):
            # Whoever makes room for whole numbers writes them before reading them; weights without values stay unknown.
            with _disable_current_modes():
                self.set(output, torch.zeros(output.shape, dtype=output.dtype))
        elif func is _ATEN.randperm.default:
            with _disable_current_modes():
                self.set(output, torch.arange(output.numel(), dtype=output.dtype))
        elif func in (_ATEN.randint.default, _ATEN.randint.low):
            low, high = (0, args[0]) if func is _ATEN.randint.default else args[:2]
            with _disable_current_modes():
                spread = torch.arange(output.numel()) % max(1, high - low) + low
                self.set(output, spread.reshape(output.shape).to(output.dtype))

    def _spread(self, func: Any, args: tuple[Any, ...], output: Any) -> None:
        """Choices among unknown values (the experts of a router) are taken to be spread evenly, and matrices as regular."""
        if func in _FACTORISATIONS:
            with _disable_current_modes():
                none = torch.zeros(output[-1].shape, dtype=output[-1].dtype)
                self.set(output[-1], none, origin="factorisations of matrices are taken to succeed")
            return
        if func is _ATEN.topk.default:
            indices, choices = output[1], args[0].shape[-1] if args[0].dim() else 1
        elif func is _ATEN.argmax.default and len(args) > 1 and args[1] is not None:
            indices, choices = output, args[0].shape[args[1]]
        elif func is _ATEN.max.dim:
            indices, choices = output[1], args[0].shape[args[1]]
        else:
            return
        if indices.numel() <= WHOLE_LIMIT:
            with _disable_current_modes():
                spread = (torch.arange(indices.numel()) % max(1, choices)).reshape(indices.shape)
                self.set(indices, spread, origin="what a router or argmax chooses is taken to be spread evenly")


def _run_beside(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: Mapping[int, Value], tensors: list[torch.Tensor],
    outputs: list[torch.Tensor],
) -> bool:  # fmt: skip
    """Runs an operation on the real values and keeps the results behind its fake ones."""
    try:
        with _disable_current_modes(), torch.no_grad():
            if func._schema.is_mutable:
                _give_rooms(tensors[:1], known)
            results = func(*_real(args, known), **{key: _real(item, known) for key, item in kwargs.items()})
    except Exception:
        return False
    alive_of = {tensor.untyped_storage()._cdata: known[id(tensor)].alive for tensor in tensors}
    origin = next((value.origin for value in known.values() if value.origin), "")
    for fake, result in zip(outputs, _tensors_in((results,)), strict=False):
        if isinstance(fake, FakeTensor):
            alive = alive_of.get(fake.untyped_storage()._cdata)
            fake.__dict__[_SLOT] = Value(result, [True] if alive is None else alive, origin)
    return True


def _follow_equal(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: Mapping[int, Value], output: Any
) -> bool:
    """A large tensor whose elements are all the same (the mask of samples of one length) is followed by one of them."""
    returned = func._schema.returns
    is_view = bool(returned) and returned[0].alias_info is not None
    if func._schema.is_mutable or not (is_view or torch.Tag.pointwise in func.tags):
        return False
    with _disable_current_modes(), torch.no_grad():
        if not all(_is_one_value(value.real) for value in known.values()):
            return False
        ones = {key: Value(_one_of(value.real).expand(value.real.shape), value.alive) for key, value in known.items()}
        if not is_view:
            ones = {key: Value(_one_of(value.real), value.alive) for key, value in ones.items()}
        result = func(*_real(args, ones), **{key: _real(item, ones) for key, item in kwargs.items()})
        if not isinstance(result, torch.Tensor):
            return False
        alive = next(iter(known.values())).alive if is_view else [True]
        output.__dict__[_SLOT] = Value(result.expand(output.shape), alive)
    return True


def _one_of(real: Any) -> Any:
    return real[(slice(0, 1),) * real.dim()]


def _is_one_value(real: Any) -> bool:
    if real.numel() == 0:
        return False
    is_held_once = all(step == 0 or size == 1 for step, size in zip(real.stride(), real.shape, strict=True))
    return is_held_once or bool(_is_small(real) and (real == real.flatten()[0]).all())


def _give_rooms(tensors: list[torch.Tensor], known: Mapping[int, Value]) -> None:
    """Elements that are one in memory get room of their own before one of them is written."""
    for tensor in tensors:
        value = known[id(tensor)]
        if value.real.numel() > 1 and 0 in value.real.stride():
            value.real = value.real.clone(memory_format=torch.contiguous_format)


def _grouped_product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The fake kernel knows bf16 only; other dtypes have the same shapes."""

    def narrowed(item: Any) -> Any:
        is_wide = isinstance(item, torch.Tensor) and item.dtype.is_floating_point
        return torch.empty_strided(item.shape, item.stride(), dtype=torch.bfloat16) if is_wide else item

    options = {key: narrowed(item) for key, item in kwargs.items() if key != "out_dtype"}
    product = func(*(narrowed(item) for item in args), **options)
    return torch.empty_strided(product.shape, product.stride(), dtype=kwargs.get("out_dtype") or args[0].dtype)


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def _is_small(tensor: Any) -> bool:
    limit = FLOAT_LIMIT if tensor.dtype.is_floating_point or tensor.dtype.is_complex else WHOLE_LIMIT
    return bool(tensor.numel() <= limit)


def _tensors_in(items: Any) -> list[torch.Tensor]:
    return [item for item in _flat(items) if isinstance(item, torch.Tensor)]


def _real(item: Any, known: Mapping[int, Value]) -> Any:
    """An argument with the numbers of its tensors in their place."""
    if isinstance(item, torch.Tensor):
        return known[id(item)].real
    if isinstance(item, (list, tuple)):
        return type(item)(_real(part, known) for part in item)
    return item


def _flat(items: Any) -> list[Any]:
    flat: list[Any] = []
    for item in items:
        if isinstance(item, (list, tuple)):
            flat += _flat(item)
        else:
            flat.append(item)
    return flat
