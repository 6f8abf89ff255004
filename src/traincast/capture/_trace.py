"""One real training step, run on tensors without memory, to a graph of what it did."""

import bisect
import contextlib
import functools
import inspect
import logging
import math
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from traincast.capture import _fused as fused
from traincast.capture._calls import NO_WORK, arithmetic_dtype, name_of, read_call
from traincast.capture._folding import fold
from traincast.capture._kernels import CHOICES as KERNEL_CHOICES
from traincast.capture._kernels import replace_kernels, replace_losses, replaced_flex_attention
from traincast.capture._libraries import operator_rules, replace_functions, replace_modules
from traincast.capture._lifetimes import Lifetimes
from traincast.capture._master import keep_master
from traincast.capture._operators import DTYPES, Rule, Work, describe, dtype_name
from traincast.capture._optimizers import IMPLEMENTATIONS, num_launches
from traincast.capture._rules import installed_rules
from traincast.capture._updates import Updated, find_updates, work_dtype
from traincast.capture._values import Values
from traincast.capture._wrapped import (
    flatten,
    is_spread,
    is_wrapper,
    leaves,
    rebuild,
    say_spread,
    unwrap,
    without_distributed_hooks,
)
from traincast.errors import CaptureFailed, InvalidInput, TraincastError, UnknownName
from traincast.noun import noun
from traincast.spec import MODES, Graph, Op, Tensor
from traincast.units import DTYPE_BYTES

PRECISIONS = ("fp32", "tf32", "bf16-amp", "fp16-amp", "bf16", "fp16", "bf16-pure")

_CAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "bf16-pure": torch.bfloat16}
_MASTER = {"bf16": "fp32", "fp16": None}
"""Precisions whose optimizer keeps fp32 weights and state, and what gradients are kept in; None: as computed."""
_AUTOCAST = {"bf16-amp": torch.bfloat16, "fp16-amp": torch.float16}
_TENSOR_CORE_KINDS = ("matmul", "conv", "rnn", "attention")
_AUTOGRAD_VIEWS = ("aten.detach", "aten.alias", "aten.detach_")
_SKIPPED_INITS = ("uniform_", "normal_", "random_", "exponential_", "bernoulli_", "erfinv_", "trunc_normal_")

# What torch.autocast runs in fp32 on CUDA (documented list); the CPU's own list is shorter.
_AUTOCAST_FP32_NAMES = """
    __pow__ __rdiv__ __rpow__ __rtruediv__ acos asin binary_cross_entropy_with_logits cosh cosine_embedding_loss cdist
    cosine_similarity cross_entropy cumprod cumsum dist erfinv exp expm1 group_norm hinge_embedding_loss kl_div l1_loss
    layer_norm rms_norm log log10 log_softmax log1p log2 margin_ranking_loss mse_loss multilabel_margin_loss
    multi_margin_loss nll_loss norm normalize pdist poisson_nll_loss pow prod reciprocal rsqrt sinh smooth_l1_loss
    soft_margin_loss softmax softmin softplus sum renorm tan triplet_margin_loss
"""
_AUTOCAST_FP32 = frozenset(_AUTOCAST_FP32_NAMES.split())
_READ_LIMIT = 64
_TAKE_SPARSE = ("sgd", "momentum", "sparseadam", "adagrad")
_RECURRENT = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "rnn_tanh", "rnn_relu": "rnn_relu"}


@dataclass(slots=True)
class _Storage:
    shape: tuple[int, ...]
    dtype: str
    role: str
    name: str


class _Interception(TorchFunctionMode):  # type: ignore[misc]
    """Calls the fused operation where an accelerator would, and keeps every tensor on the one fake device."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self.values = values

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        replacement = _REPLACED.get(name)
        if replacement is not None and not isinstance(func, torch._ops.OpOverload):
            return replacement(*args, **kwargs)
        if name == "cuda" and args:
            return args[0]
        if name in ("numpy", "__array__", "tolist") and args and isinstance(args[0], FakeTensor):
            return self._numbers(name, args[0])
        if name in ("tensor", "as_tensor") and args and isinstance(args[0], (list, tuple)):
            args = (_without_tensors(args[0]), *args[1:])
        if name == "to" or "device" in kwargs:
            args = tuple(_on_host(arg) for arg in args)
            kwargs = {key: _on_host(item) if key == "device" else item for key, item in kwargs.items()}
        if name in _AUTOCAST_FP32 and torch.is_autocast_enabled("cpu"):
            args, kwargs = _widened(args, kwargs)
        return func(*args, **kwargs)

    def _numbers(self, name: str, tensor: Any) -> Any:
        if name == "tolist" and self.values.get(tensor) is None and tensor.numel() <= _READ_LIMIT:
            return _read_list(tensor)
        numbers = self.values.numbers(tensor)
        return numbers.tolist() if name == "tolist" else numbers


def _read_list(tensor: Any) -> Any:
    """Unknown values one by one, as `item` answers them."""
    return tensor.item() if tensor.dim() == 0 else [_read_list(part) for part in tensor]


def _without_tensors(item: Any) -> Any:
    """Lists of scalars that are tensors themselves, as numbers."""
    if isinstance(item, torch.Tensor):
        return item.item() if item.dim() == 0 else item.tolist()
    return [_without_tensors(part) for part in item] if isinstance(item, (list, tuple)) else item


def _on_host(item: Any) -> Any:
    device = item
    if isinstance(item, str) and item.partition(":")[0] in ("cuda", "mps", "xpu", "hpu", "npu", "xla"):
        device = torch.device("cpu")
    if isinstance(device, torch.device) and device.type not in ("cpu", "meta"):
        device = torch.device("cpu")
    return device


def _widened(args: Any, kwargs: Any) -> Any:
    def widen(item: Any) -> Any:
        is_narrow = isinstance(item, torch.Tensor) and item.dtype in (torch.float16, torch.bfloat16)
        return item.float() if is_narrow else item

    return tuple(widen(arg) for arg in args), {key: widen(item) for key, item in kwargs.items()}


def _dropout(
    input: Any,  # noqa: A002 (the name callers use)
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    train: bool | None = None,
) -> Any:
    if not (training if train is None else train) or p == 0.0 or input.numel() == 0:
        return input
    return torch.native_dropout(input, p, True)[0]


_REPLACED: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": fused.attention,
    "dropout": _dropout,
    "_pad_packed_sequence": fused.pad_packed,
    "_pack_padded_sequence": fused.pack_padded,
    **{name: functools.partial(fused.recurrent, cell) for name, cell in _RECURRENT.items()},
}


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Logs every aten call with its phase, its module and the storages it touches."""

    def __init__(self, *, tf32: bool, mask_density: float = 0.5, rules: Mapping[str, Rule] | None = None) -> None:
        super().__init__()
        self.values = Values(mask_density=mask_density)
        self.rules: Mapping[str, Rule] = {**operator_rules(), **installed_rules(), **(rules or {})}
        self.sparse_rows: dict[int, int] = {}
        """Rows that a lookup with sparse gradients touches, by the storage of its table."""
        self.recording = False
        self.tf32 = tf32
        self.ops: list[Op] = []
        self.storages: list[_Storage] = []
        self.paths: dict[int, str] = {}
        self.parameter_paths: dict[int, str] = {}
        self.stack: list[str] = []
        self.failed_op = ""
        self.failure: tuple[BaseException | None, str] = (None, "")
        self._index_of: dict[int, int] = {}
        self._kept: list[StorageWeakRef] = []
        self._lifetimes = Lifetimes(lambda: len(self.ops))
        self._sequence: dict[int, str] = {}
        self._sorted_sequence: list[int] = []
        self._pending_calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(is_wrapper(kind) for kind in types):
            # The wrapper runs its own operations on what is inside, and these come here again.
            return NotImplemented
        if func.namespace in ("prim", "profiler"):
            return func(*args, **kwargs)
        if not self.recording and func._schema.name.removeprefix("aten::") in _SKIPPED_INITS:
            return args[0]
        try:
            output = self.values.run(func, args, kwargs)
        except Exception:
            self.failed_op = self.failed_op or func._schema.name.replace("::", ".")
            raise
        if self.recording:
            self._record(func, args, kwargs, output)
        return output

    def index(self, tensor: Any, *, role: str = "temporary", name: str = "") -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        found = self._index_of.get(key)
        if found is not None:
            return found
        shape = tuple(tensor.shape)
        item = tensor.element_size()
        if tensor.numel() * item != storage.nbytes():
            shape = (-(-storage.nbytes() // item),)
        self._index_of[key] = len(self.storages)
        # The weak reference keeps the address of a dead storage from being given to another.
        self._kept.append(StorageWeakRef(storage))
        self.storages.append(_Storage(shape, dtype_name(tensor), role, name))
        if role == "temporary":
            self._lifetimes.watch(storage, len(self.storages) - 1)
        return len(self.storages) - 1

    def hold_at_peak(self, gradients: Iterable[Any]) -> None:
        sizes = [
            math.prod(each.shape) * DTYPE_BYTES[each.dtype] if each.role == "temporary" else 0.0
            for each in self.storages
        ]
        for gradient in gradients:
            sizes[self.index(gradient)] = 0.0
        self.ops = self._lifetimes.hold(self.ops, sizes)

    def _record(self, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        name = name_of(func)
        in_backward = torch._C._current_graph_task_id() != -1
        grad_enabled = torch.is_grad_enabled()
        is_recomputed = grad_enabled or self.stack or fused.depth[0]
        phase = "forward" if not in_backward else "recompute" if is_recomputed else "backward"
        layer = self._backward_layer() if phase == "backward" else self.stack[-1] if self.stack else ""
        self.values.layer = layer
        if phase != "backward":
            self._sequence.setdefault(torch.autograd._get_sequence_nr() - 1, layer)
        if name in NO_WORK:
            return
        call = read_call(func, args, kwargs, output)
        if call is None:
            if name not in _AUTOGRAD_VIEWS:
                self._pending_calls += 1
            return
        if call.outputs and not any(tensor.numel() for tensor in call.outputs):
            return
        for position, work in enumerate(describe(call, self.rules)):
            num_calls = (1 + self._pending_calls) if position == 0 else 0
            self.ops.append(self._op_of(work, name=name, phase=phase, layer=layer, num_calls=num_calls))
        self._pending_calls = 0

    def _op_of(self, work: Work, *, name: str, phase: str, layer: str, num_calls: int) -> Op:
        dtype = arithmetic_dtype(work.reads, work.writes)
        if dtype == "fp32" and self.tf32 and work.kind in _TENSOR_CORE_KINDS:
            dtype = "tf32"
        return Op(
            name=name + work.suffix, kind=work.kind, flop=work.flop, bytes_read=work.bytes_read,
            bytes_written=work.bytes_written, phase=phase, dtype=dtype,
            reads=tuple(dict.fromkeys(self.index(tensor) for tensor in work.reads)),
            writes=tuple(dict.fromkeys(self.index(tensor) for tensor in work.writes)), layer=layer, attrs=work.attrs,
            num_kernels=work.num_kernels, num_calls=num_calls,
        )  # fmt: skip

    def _backward_layer(self) -> str:
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        number = node._sequence_nr()
        layer = self._sequence.get(number)
        if layer is not None:
            return layer
        variable = getattr(node, "variable", None)
        if variable is not None:
            return self.parameter_paths.get(id(variable), "")
        # A node made after its operation ran (in-place) has no entry of its own: take the last one before it.
        if len(self._sorted_sequence) != len(self._sequence):
            self._sorted_sequence = sorted(self._sequence)
        place = bisect.bisect_right(self._sorted_sequence, number)
        return self._sequence[self._sorted_sequence[place - 1]] if place else ""

    @contextlib.contextmanager
    def watch_modules(self) -> Iterator[None]:
        def enter(module: nn.Module, arguments: Any) -> None:
            self.stack.append(self.paths.get(id(module), self.stack[-1] if self.stack else ""))

        def leave(module: nn.Module, arguments: Any, output: Any) -> None:
            path = self.stack.pop()
            error = sys.exc_info()[1]
            if error is not None and error is not self.failure[0]:
                # The innermost module leaves first, so it is the one to name.
                self.failure = (error, path)

        handles = [
            nn.modules.module.register_module_forward_pre_hook(enter),
            nn.modules.module.register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@noun
class Options:
    """How a step is recorded."""

    loss: Any = None
    """A function of the output (and of `target`), "cross_entropy", "mse", or None: the model's own loss, else the mean of its
    output."""
    target: Any = None
    optimizer: Any = "adamw"
    """A name, a torch optimizer, its class, a function that makes one from the parameters, or a list of these."""
    mode: str = "training_step"
    precision: str = "fp32"
    name: str = ""
    accumulate: int = 1
    max_grad_norm: float | None = None
    implementation: str = "foreach"
    batch_size: int | None = None
    """Of one pass; otherwise `batch_dim` of the first input, or the length of the first list of tensors."""
    batch_dim: int | None = 0
    """None: the inputs are one sample."""
    samples_unit: str = "samples"
    tokens_per_sample: int = 1
    source: str = "torch"
    folded: bool = True
    holds_output: bool = True
    """The loop keeps a name for what the model returned, so that it lives through the backward pass."""
    kernels: str = "fast"
    """fast: known kernels in the place of the loops that a CPU runs; plain: what the code itself runs."""
    mask_density: float = 0.5
    """The share of masks and boxes that hold where the data decide."""
    rules: Mapping[str, Rule] | None = None
    """What calls of operations mean that this package does not know."""

    def __post_init__(self) -> None:
        for kind, value, allowed in (
            ("kernels", self.kernels, KERNEL_CHOICES),
            ("mode", self.mode, MODES),
            ("precision", self.precision, PRECISIONS),
            ("optimizer implementation", self.implementation, IMPLEMENTATIONS),
        ):
            if value not in allowed:
                raise UnknownName(kind, value, allowed)
        if self.accumulate < 1:
            raise InvalidInput(f"accumulate = {self.accumulate}; it must be at least 1")
        if not 0 < self.mask_density <= 1:
            raise InvalidInput(f"mask_density = {self.mask_density}; it must be above 0 and at most 1")


def capture(model: Any, inputs: Any = (), **options: Any) -> Graph:
    """Record one step of `model`, a module or a function that builds one (then its weights are never allocated).

    `inputs` are the arguments of its forward: a tensor, a tuple, a mapping of keyword arguments, or a function that makes
    them. The options are the fields of `Options`; the batch of the graph is that of one pass times `accumulate`.
    """
    unknown = [key for key in options if key not in Options.__dataclass_fields__]
    if unknown:
        raise UnknownName("option of capture", unknown[0], Options.__dataclass_fields__, plural="options of capture")
    return _capture(model, inputs, Options(**options))


def _capture(model: Any, inputs: Any, how: Options) -> Graph:
    recorder = _Recorder(tf32=how.precision == "tf32", mask_density=how.mask_density, rules=how.rules)
    name = how.name
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        patch_imported = stack.enter_context(_patched(recorder, kernels=how.kernels))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(recorder)
        stack.enter_context(_Interception(recorder.values))
        try:
            module = model if isinstance(model, nn.Module) else model()
            module = unwrap(module)
            patch_imported(module if isinstance(module, nn.Module) else None)
            given = _made(inputs)
            if not isinstance(module, nn.Module):
                raise CaptureFailed(f"{_called(model)} returned a {type(module).__name__}; a torch.nn.Module is needed")
            _materialise(module, given)
            name = name or type(module).__name__
            step = _Step(
                module=module, recorder=recorder, loss=how.loss, target=_made(how.target), mode=how.mode,
                precision=how.precision, accumulate=how.accumulate, holds_output=how.holds_output,
                batch_dim=how.batch_dim,
            )  # fmt: skip
            with step.prepared(given) as ready:
                ready.run()
                recorder.hold_at_peak([parameter.grad for _, parameter in ready.trained()])
                _append_optimizer(
                    ready, optimizer=how.optimizer, implementation=how.implementation, max_grad_norm=how.max_grad_norm
                )
                graph = ready.graph(
                    name=name, batch_size=how.batch_size, samples_unit=how.samples_unit,
                    tokens_per_sample=how.tokens_per_sample, source=how.source,
                )  # fmt: skip
        except TraincastError:
            raise
        except Exception as error:
            raise _explain(error, recorder, name or _called(model)) from error
    graph = fold(graph) if how.folded else graph
    return keep_master(graph, gradient=_MASTER[how.precision]) if how.precision in _MASTER else graph


def _materialise(module: nn.Module, inputs: Any) -> None:
    """Lazy layers take their shapes from a first forward pass."""
    tensors = [t for part in module.modules() for t in (*part._parameters.values(), *part._buffers.values())]
    if any(isinstance(tensor, nn.parameter.UninitializedTensorMixin) for tensor in tensors):
        with torch.no_grad():
            if isinstance(inputs, Mapping):
                module(**inputs)
            else:
                module(*(inputs if isinstance(inputs, (tuple, list)) else (inputs,)))


def _made(inputs: Any) -> Any:
    return inputs() if callable(inputs) and not isinstance(inputs, (torch.Tensor, nn.Module)) else inputs


def _called(model: Any) -> str:
    return str(getattr(model, "__qualname__", type(model).__name__))


def _explain(error: Exception, recorder: _Recorder, name: str) -> CaptureFailed:
    text = " ".join(str(error).split())
    text = text if len(text) <= 300 else text[:297] + "..."
    module = recorder.failure[1] if recorder.failure[0] is error else ""
    where = f" in module {module!r}" if module else ""
    where += _line_of(error)
    for sign, advice in _ADVICE.items():
        if sign in recorder.failed_op or sign in text:
            return CaptureFailed(f"{name} cannot be captured{where}: {advice}")
    if recorder.failed_op:
        return CaptureFailed(f"{name} cannot be captured: operation {recorder.failed_op}{where} failed: {text}")
    return CaptureFailed(f"{name} cannot be captured: it raised {type(error).__name__}{where}: {text}")


_ADVICE = {
    "_sparse_": "sparse tensors have no recording; write the product with index_select and index_add, or with a dense matrix",
    "shape_env": "nested (jagged) tensors have no recording; pad the samples, or join their rows in one tensor",
}
"""What to do instead of what a fake tensor cannot be, by a word of the operation or of the error."""


def _line_of(error: Exception) -> str:
    """The last line of the user's own files that the error passed."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parents[1])
    own = [
        each for each in frames if "site-packages" not in each.filename and not each.filename.startswith((ours, "<"))
    ]
    return f" (at {Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


@contextlib.contextmanager
def _patched(recorder: _Recorder, *, kernels: str) -> Iterator[Callable[..., None]]:
    """While recording: conversions of fake modules work, weights are not initialised, fused operations are found.

    Yields a function to be called again once the model is built, for packages that its building imported.
    """
    saved: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, attribute: str, replacement: Any) -> None:
        saved.append((owner, attribute, vars(owner).get(attribute)))
        setattr(owner, attribute, replacement)

    _patch_building(patch)
    _patch_functions(patch, recorder)
    if kernels == "fast":
        for owner in (F, torch):
            patch(owner, "rms_norm", _widening(fused.rms_norm))

    def patch_imported(model: nn.Module | None = None) -> None:
        if model is not None and kernels == "fast":
            replace_modules(model, patch, recorder.values)
        patch_libraries()

    def patch_libraries() -> None:
        """Transformers builds full masks for fake tensors, and none in the eager run that is wanted here."""
        module = sys.modules.get("transformers.utils.import_utils")
        if module is not None and hasattr(module, "is_fake_tensor") and module.is_fake_tensor is not _never:
            patch(module, "is_fake_tensor", _never)
        replace_functions(patch, recorder.values, fast=kernels == "fast")
        if kernels == "fast":
            replace_kernels(patch, lambda sentence: recorder.values.assumptions.update({sentence: None}))
        models = sys.modules.get("transformers.modeling_utils")
        if models is not None and models.PreTrainedModel.__dict__.get("initialize_weights") not in (None, _nothing):
            patch(models.PreTrainedModel, "initialize_weights", _nothing)

    # PyTorch logs the stack of an impossible operation before it raises; the raised error says enough.
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, logger.disabled = logger.disabled, True
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    patch_libraries()
    try:
        with replaced_flex_attention():
            yield patch_imported
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
        logger.disabled = was_disabled
        for owner, attribute, original in reversed(saved):
            if original is None:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, original)


def _patch_building(patch: Callable[[Any, str, Any], None]) -> None:
    """Conversions and lazy layers work, and weights are not initialised."""

    def keep(tensor: Any, *arguments: Any, **options: Any) -> Any:
        return tensor

    for attribute in ("uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_",
                      "kaiming_normal_", "orthogonal_", "sparse_"):  # fmt: skip
        patch(nn.init, attribute, keep)
    patch(nn.Module, "_apply", _apply)
    patch(FakeTensor, "__format__", _format)
    patch(FakeTensor, "__deepcopy__", _deepcopy)
    patch(nn.Module, "cuda", lambda module, device=None: module)
    patch(nn.parameter.UninitializedParameter, "__new__", _really(nn.parameter.UninitializedParameter.__new__))
    patch(nn.parameter.UninitializedBuffer, "__new__", _really(nn.parameter.UninitializedBuffer.__new__))
    patch(
        nn.parameter.UninitializedTensorMixin, "materialize", _really(nn.parameter.UninitializedTensorMixin.materialize)
    )


def _patch_functions(patch: Callable[[Any, str, Any], None], recorder: _Recorder) -> None:
    """Fused operations, sparse lookups and autocast as an accelerator has them."""
    # Functions that torch.nn.functional calls itself never pass the function mode.
    patch(F, "scaled_dot_product_attention", fused.attention)
    patch(F, "dropout", _dropout)
    replace_losses(patch)
    patch(torch, "cond", recorder.values.choose)
    for attribute in ("embedding", "embedding_bag"):
        patch(F, attribute, _dense_lookup(getattr(F, attribute), recorder))
    for attribute in ("softmax", "log_softmax", "layer_norm", "group_norm", "nll_loss"):
        patch(F, attribute, _widening(getattr(F, attribute)))
    original_autocast = torch.amp.autocast_mode.autocast.__init__

    @functools.wraps(original_autocast)
    def autocast_on_host(self: Any, device_type: Any = "cpu", dtype: Any = None, **options: Any) -> None:
        if str(device_type) != "cpu":
            dtype = dtype or torch.get_autocast_dtype(str(device_type))
        original_autocast(self, "cpu", dtype, **options)

    patch(torch.amp.autocast_mode.autocast, "__init__", autocast_on_host)


def _really(function: Callable[..., Any]) -> Any:
    """Parameters without a shape yet cannot be fake; they are made and filled as real, empty tensors."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return staticmethod(wrapped) if function.__name__ == "__new__" else wrapped


def _dense_lookup(function: Callable[..., Any], recorder: _Recorder) -> Callable[..., Any]:
    """A lookup whose gradient holds the touched rows only: recorded with a dense one, which is cut to these rows later."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if bound.arguments.get("sparse"):
            bound.arguments["sparse"] = False
            indices, table = bound.arguments["input"], bound.arguments["weight"]
            if indices.dtype.is_floating_point:
                indices, table = table, indices
            key = table.untyped_storage()._cdata
            recorder.sparse_rows[key] = recorder.sparse_rows.get(key, 0) + int(indices.numel())
        return function(*bound.args, **bound.kwargs)

    return wrapped


def _format(tensor: Any, specification: str) -> str:
    """A scalar in an f-string is its value, as with a real tensor: some models name their parts so."""
    if tensor.dim() == 0:
        return format(tensor.item(), specification)
    return repr(tensor)


def _deepcopy(tensor: Any, memo: dict[int, Any]) -> Any:
    """A model that copies itself (a teacher, a second head) copies tensors that have no memory."""
    made = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made, requires_grad=tensor.requires_grad)
    memo[id(tensor)] = made
    return made


def _nothing(*arguments: Any, **options: Any) -> None:
    """Weights without memory need no first values."""


def _never(tensor: Any) -> bool:
    return False


def _widening(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            args, kwargs = _widened(args, kwargs)
        return function(*args, **kwargs)

    return wrapped


def _apply(module: nn.Module, convert: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
    """nn.Module._apply by replacement instead of swapping, which fake tensors refuse; tied tensors stay tied."""
    done: dict[int, tuple[Any, Any]] = {}

    def converted(tensor: Any, *, is_parameter: bool) -> Any:
        found = done.get(id(tensor))
        if found is None:
            with torch.no_grad():
                result = convert(tensor)
            if result is not tensor and is_parameter:
                result = nn.Parameter(result, requires_grad=tensor.requires_grad)
            found = (tensor, result)
            done[id(tensor)] = found
        return found[1]

    for part in module.modules() if recurse else [module]:
        for owned, is_parameter in ((part._parameters, True), (part._buffers, False)):
            for key, tensor in owned.items():
                if tensor is not None:
                    owned[key] = converted(tensor, is_parameter=is_parameter)
    return module


@dataclass(slots=True)
class _Ready:
    """A model on fake weights with its inputs, ready to run."""

    step: "_Step"
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any
    first_batch: int | None
    parameters: list[tuple[str, Any]]
    originals: dict[int, int]
    """id of the user's parameter to id of the fake one."""
    outputs: list[Any] = field(default_factory=list)
    """Tensors that the model returned, held as long as a plain training loop holds them."""

    def run(self) -> None:
        step, recorder = self.step, self.step.recorder
        recorder.recording = recorder.values.recording = True
        with recorder.watch_modules():
            for _ in range(step.accumulate if step.mode != "inference" else 1):
                if step.mode == "inference":
                    with torch.no_grad(), step.autocast():
                        step.module(*self.args, **self.kwargs)
                else:
                    self._forward_backward()
        recorder.recording = False

    def _forward_backward(self) -> None:
        step = self.step
        with step.autocast():
            output = step.module(*self.args, **self.kwargs)
            loss = step.compute_loss(output, self.target)
        if step.holds_output:
            self.outputs = [leaf for leaf in tree_leaves(_plain_output(output)) if isinstance(leaf, torch.Tensor)]
        del output
        if step.precision == "fp16-amp":
            loss = loss * 65536.0
        if step.accumulate > 1:
            loss = loss / step.accumulate
        if not loss.requires_grad:
            raise CaptureFailed(
                f"{type(step.module).__name__} cannot be trained: its loss depends on no parameter that requires a gradient"
            )
        # Not loss.backward(): that would pass the function mode and leave recomputed attention unseen.
        torch.autograd.backward(loss)

    def trained(self) -> list[tuple[str, Any]]:
        return [(name, parameter) for name, parameter in self.parameters if parameter.grad is not None]

    def graph(
        self, *, name: str, batch_size: int | None, samples_unit: str, tokens_per_sample: int, source: str
    ) -> Graph:
        recorder = self.step.recorder
        for parameter_name, parameter in self.trained():
            storage = recorder.storages[recorder.index(parameter.grad)]
            if storage.role == "temporary":
                storage.role, storage.name = "gradient", parameter_name
            rows = recorder.sparse_rows.get(parameter.untyped_storage()._cdata)
            if rows is not None and storage.role == "gradient" and len(storage.shape) == 2 and rows < storage.shape[0]:
                _cut_gradient(recorder, recorder.index(parameter.grad), rows)
        _mark_activations(recorder)
        batch = batch_size if batch_size is not None else self.first_batch
        if batch is None:
            raise CaptureFailed(f"{name} has no tensor input to take the batch from; give batch_size")
        steps = self.step.accumulate if self.step.mode != "inference" else 1
        return Graph(
            name=name,
            ops=tuple(recorder.ops),
            tensors=tuple(
                Tensor(shape=storage.shape, dtype=storage.dtype, role=storage.role, name=storage.name)
                for storage in recorder.storages
            ),
            batch_size=batch * steps,
            mode=self.step.mode,
            samples_unit=samples_unit,
            tokens_per_sample=tokens_per_sample,
            source=source,
            assumptions=tuple(recorder.values.assumptions),
        )


def _cut_gradient(recorder: _Recorder, index: int, rows: int) -> None:
    """A sparse gradient: the touched rows, written by the backward pass and read by the update."""
    storage = recorder.storages[index]
    whole = float(storage.shape[0] * storage.shape[1] * DTYPE_BYTES[storage.dtype])
    storage.shape = (rows, storage.shape[1])
    part = float(rows * storage.shape[1] * DTYPE_BYTES[storage.dtype])
    for place, op in enumerate(recorder.ops):
        if index in op.writes and op.phase == "backward":
            recorder.ops[place] = replace(op, bytes_written=max(part, op.bytes_written - whole + part))
        elif index in op.reads and op.kind == "optimizer" and op.attrs["numel"]:
            # Parameter, moments and temporaries are touched in the same rows.
            share = (whole - part) / (float(op.attrs["numel"]) * DTYPE_BYTES[storage.dtype])
            recorder.ops[place] = replace(
                op, bytes_read=op.bytes_read * (1 - share), bytes_written=op.bytes_written * (1 - share),
                flop=None if op.flop is None else op.flop * (1 - share),
            )  # fmt: skip


def _mark_activations(recorder: _Recorder) -> None:
    """What the forward pass writes and the backward pass reads is an activation; the rest stays temporary."""
    written_forward: set[int] = set()
    for op in recorder.ops:
        if op.phase in ("forward", "recompute"):
            written_forward.update(op.writes)
        else:
            for index in op.reads:
                if index in written_forward and recorder.storages[index].role == "temporary":
                    recorder.storages[index].role = "activation"


@dataclass(slots=True)
class _Step:
    module: nn.Module
    recorder: _Recorder
    loss: Any
    target: Any
    mode: str
    precision: str
    accumulate: int
    holds_output: bool = True
    batch_dim: int | None = 0

    def autocast(self) -> Any:
        dtype = _AUTOCAST.get(self.precision)
        return torch.autocast("cpu", dtype=dtype) if dtype is not None else contextlib.nullcontext()

    @contextlib.contextmanager
    def prepared(self, inputs: Any) -> Iterator[_Ready]:
        """The module on fake weights; what the user's own module held is put back afterwards."""
        recorder, module = self.recorder, self.module
        saved: list[tuple[dict[str, Any], str, Any]] = []
        training = [(part, part.training) for part in module.modules()]
        fakes = _FakeTensors(recorder, cast=_CAST.get(self.precision))
        originals: dict[int, int] = {}
        put_hooks_back = without_distributed_hooks(module)
        try:
            for path, part in module.named_modules(remove_duplicate=False):
                recorder.paths.setdefault(id(part), path)
                for owned, role in ((part._parameters, "parameter"), (part._buffers, "buffer")):
                    for key, tensor in owned.items():
                        if tensor is None:
                            continue
                        if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
                            raise CaptureFailed(
                                f"module {path!r} has the uninitialised parameter {key!r}; run the model once on a small input"
                            )
                        saved.append((owned, key, tensor))
                        full_name = f"{path}.{key}" if path else key
                        owned[key] = fakes.of(tensor, role=role, name=full_name)
                        originals[id(tensor)] = id(owned[key])
                        if role == "parameter":
                            recorder.parameter_paths.setdefault(id(owned[key]), path)
            if self.mode == "inference":
                module.eval()
            elif not module.training:
                module.train()
            if isinstance(inputs, Mapping):
                args, kwargs = (), {key: fakes.inputs(value, name=key) for key, value in inputs.items()}
            else:
                args = tuple(
                    fakes.inputs(value, name=f"input_{number}")
                    for number, value in enumerate(inputs if isinstance(inputs, (tuple, list)) else (inputs,))
                )
                kwargs = {}
            yield _Ready(
                step=self,
                args=args,
                kwargs=kwargs,
                target=fakes.inputs(self.target, name="target"),
                first_batch=count_samples((*args, *kwargs.values()), self.batch_dim),
                parameters=list(module.named_parameters()),
                originals=originals,
            )
        finally:
            put_hooks_back()
            # Backwards: a module that is used in several places was saved several times, first with its real tensors.
            for owned, key, tensor in reversed(saved):
                owned[key] = tensor
            for part, was_training in training:
                part.training = was_training

    def compute_loss(self, output: Any, target: Any) -> Any:
        if callable(self.loss):
            return self.loss(output) if target is None else self.loss(output, target)
        own = getattr(output, "loss", None)
        if own is None and isinstance(output, Mapping):
            own = output.get("loss")
        if self.loss is None and isinstance(own, torch.Tensor):
            return own
        tensors = [
            leaf for leaf in tree_leaves(_plain_output(output)) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        if not tensors:
            raise CaptureFailed(
                f"{type(self.module).__name__} returned no tensor that requires a gradient; give loss= a function of its output"
            )
        first = tensors[0]
        if self.loss is None:
            return self._own_loss(tensors)
        if self.loss == "cross_entropy":
            scores = first.flatten(0, -2) if first.dim() == 3 else first
            if target is None:
                shape = (scores.shape[0], *scores.shape[2:])
                target = self._made_up("target", torch.zeros(shape, dtype=torch.int64))
            return F.cross_entropy(scores, target.flatten() if first.dim() == 3 else target)
        if self.loss == "mse":
            return F.mse_loss(first, self._made_up("target", torch.zeros_like(first)) if target is None else target)
        raise UnknownName("loss", str(self.loss), ("cross_entropy", "mse"))

    def _own_loss(self, tensors: list[Any]) -> Any:
        """Of a model that returns no tensor called loss."""
        losses = [tensor for tensor in tensors if tensor.dim() == 0]
        if len(losses) == len(tensors) > 1:
            self.recorder.values.assumptions[f"the model returned {len(losses)} losses: their sum is taken"] = None
            return functools.reduce(lambda a, b: a + b, losses)
        if tensors[0].dim() == 0:
            return tensors[0]
        self.recorder.values.assumptions["no loss was given: the mean of the output is taken"] = None
        return functools.reduce(lambda a, b: a + b, [tensor.float().mean() for tensor in tensors])

    def _made_up(self, name: str, tensor: Any) -> Any:
        """A target that the user did not give: an input, not the work of filling it."""
        self.recorder.ops.pop()
        storage = self.recorder.storages[self.recorder.index(tensor)]
        storage.role, storage.name = "input", name
        return tensor


def _plain_output(output: Any) -> Any:
    if hasattr(output, "to_tuple"):
        return output.to_tuple()
    return list(output.values()) if isinstance(output, Mapping) else output


def count_samples(inputs: Iterable[Any], dim: int | None) -> int | None:
    """Of the first input that has such a dim; a list of tensors (images, bags) is as many samples as it is long."""
    if dim is None:
        return 1
    for value in inputs:
        if _is_list_of_samples(value):
            return len(value)
        for leaf in tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and leaf.dim() > dim:
                return int(leaf.shape[dim])
    return None


_MOST_CHANNELS = 4


def _is_list_of_samples(value: Any) -> bool:
    """Samples of a list are alike or have their channels first; what a data loader makes of a batch, inputs and targets, has one
    leading size and differs in the rest."""
    if not isinstance(value, list) or not value or not all(isinstance(part, torch.Tensor) for part in value):
        return False
    shapes = {tuple(part.shape) for part in value}
    leading = {shape[:1] for shape in shapes}
    return len(shapes) == 1 or len(leading) > 1 or next(iter(leading)) <= (_MOST_CHANNELS,)


class _FakeTensors:
    """Fake twins of the user's tensors: same shape, strides and ties, no memory; small values stay known."""

    def __init__(self, recorder: _Recorder, *, cast: Any) -> None:
        self.recorder = recorder
        self.cast = cast
        self._done: dict[int, tuple[Any, Any]] = {}
        self._by_storage: dict[Any, Any] = {}

    def of(self, tensor: Any, *, role: str, name: str) -> Any:
        found = self._done.get(id(tensor))
        if found is not None:
            return found[1]
        is_cast = self.cast is not None and tensor.dtype.is_floating_point and tensor.dtype != self.cast
        if is_spread(tensor):
            self.recorder.values.assumptions[say_spread(tensor)] = None
            fake = torch.empty(tensor.shape, dtype=self.cast if is_cast else tensor.dtype, device="cpu")
            fake = nn.Parameter(fake, requires_grad=tensor.requires_grad) if role == "parameter" else fake
        elif is_wrapper(type(tensor)):
            return self._wrapped(tensor, role=role, name=name)
        elif isinstance(tensor, FakeTensor) and not is_cast:
            # Built without memory: whoever else holds the tensor goes on holding the one that is recorded.
            fake = tensor
        elif role == "parameter":
            fake = nn.Parameter(self._twin(tensor), requires_grad=tensor.requires_grad)
        else:
            fake = self._twin(tensor)
            fake.requires_grad_(tensor.requires_grad)
            self.recorder.values.copy(tensor, fake)
        self.recorder.index(fake, role=role, name=name)
        self._done[id(tensor)] = (tensor, fake)
        return fake

    def _wrapped(self, tensor: Any, *, role: str, name: str) -> Any:
        """A quantised weight: its largest part is the parameter, scales beside it are buffers."""
        inner, context = flatten(tensor)
        first = next(leaves(tensor), None)
        twins = {
            key: self.of(part, role=role if part is first or is_wrapper(type(part)) else "buffer", name=f"{name}.{key}")
            for key, part in inner.items()
        }
        # A part that was given as a parameter comes back as one; inside a wrapper there are plain tensors.
        plain = {key: twin.detach() if isinstance(twin, nn.Parameter) else twin for key, twin in twins.items()}
        fake = rebuild(tensor, plain, context)
        fake = nn.Parameter(fake, requires_grad=tensor.requires_grad) if role == "parameter" else fake
        self._done[id(tensor)] = (tensor, fake)
        return fake

    def inputs(self, value: Any, *, name: str) -> Any:
        return tree_map(
            lambda leaf: self.of(leaf, role="input", name=name) if isinstance(leaf, torch.Tensor) else leaf, value
        )

    def _twin(self, tensor: Any) -> Any:
        dtype = tensor.dtype
        if self.cast is not None and dtype.is_floating_point:
            dtype = self.cast
        storage = tensor.untyped_storage()
        covers_storage = tensor.numel() * tensor.element_size() == storage.nbytes()
        key = (storage._cdata, tensor.dtype) if storage.nbytes() else None
        base = self._by_storage.get(key) if key is not None else None
        if base is not None and base.numel() * tensor.element_size() >= storage.nbytes():
            # Another tensor over the same memory: tied weights that are not the same parameter.
            return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).detach()
        if covers_storage or key is None:
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="cpu")
        else:
            fake = torch.empty(tensor.shape, dtype=dtype, device="cpu")
        if key is not None and covers_storage:
            self._by_storage[key] = fake
        return fake


def _append_optimizer(ready: _Ready, *, optimizer: Any, implementation: str, max_grad_norm: float | None) -> None:
    """The optimizer as one operation per group and dtype, in its steady state."""
    step, recorder = ready.step, ready.step.recorder
    if step.mode != "training_step":
        _hold_outputs(ready)
        return
    trained = ready.trained()
    if not trained:
        return
    gradients = [parameter.grad for _, parameter in trained]
    numel = sum(gradient.numel() for gradient in gradients)
    size = sum(gradient.numel() * gradient.element_size() for gradient in gradients)
    indices = tuple(dict.fromkeys(recorder.index(gradient) for gradient in gradients))
    launches = num_launches(numel=numel, num_tensors=len(gradients))
    dtype = dtype_name(gradients[0])
    scale = Op(
        name="unscale_gradients", kind="elementwise", flop=2.0 * numel, bytes_read=size, bytes_written=size,
        phase="optimizer", dtype=dtype, reads=indices, writes=indices, num_kernels=launches, num_calls=launches,
        attrs={"function": "unscale", "numel": numel, "num_inputs": 1},
    )  # fmt: skip
    if step.precision == "fp16-amp":
        recorder.ops.append(scale)
    if max_grad_norm is not None:
        recorder.ops.append(
            replace(
                scale,
                name="norm_of_gradients",
                kind="reduce",
                bytes_written=4.0 * len(gradients),
                writes=(),
                attrs={"function": "norm", "rows": len(gradients), "cols": numel // len(gradients)},
            )
        )
        recorder.ops.append(
            replace(scale, name="clip_gradients", flop=1.0 * numel, attrs={**scale.attrs, "function": "clip"})
        )
    for update in find_updates(
        optimizer, trained, module=step.module, originals=ready.originals, implementation=implementation,
        assume=lambda sentence: recorder.values.assumptions.update({sentence: None}),
    ):  # fmt: skip
        _append_update(recorder, update)
    _hold_outputs(ready)


def _append_update(recorder: _Recorder, update: Updated) -> None:
    reads: list[int] = []
    written: list[int] = []
    for member in update.members:
        index = recorder.index(member.parameter)
        if update.algorithm not in _TAKE_SPARSE and member.parameter.untyped_storage()._cdata in recorder.sparse_rows:
            raise CaptureFailed(
                f"{member.name} is looked up with sparse=True, and {update.algorithm} takes no sparse gradients; let the file's "
                "optimizer be a list, SparseAdam for such tables and another for the rest, or use SGD, Adagrad or sparse=False"
            )
        states = []
        for state in member.states:
            recorder.storages.append(
                _Storage(state.shape, state.dtype, "optimizer_state", f"{member.name}.{state.name}")
            )
            states.append(len(recorder.storages) - 1)
        reads += [index, recorder.index(member.parameter.grad), *states]
        written += [index, *states]
    first = update.members[0].parameter
    dtype = DTYPES[first.dtype]
    if update.temporary_bytes:
        shape = (int(update.temporary_bytes // first.element_size()),)
        recorder.storages.append(_Storage(shape, dtype, "temporary", f"{update.algorithm} temporary"))
        written.append(len(recorder.storages) - 1)
    numel = sum(member.parameter.numel() for member in update.members)
    count = len(update.members)
    launches = max(1, round(update.passes)) * (
        count if update.is_per_tensor else num_launches(numel=numel, num_tensors=count)
    )
    for work, name, times in update.products:
        op = Op(
            name=name, kind=work.kind, flop=work.flop, bytes_read=work.bytes_read, bytes_written=work.bytes_written,
            phase="optimizer", dtype=work_dtype(work), attrs=work.attrs, num_kernels=work.num_kernels, layer="optimizer",
        )  # fmt: skip
        recorder.ops += [op] * times
    recorder.ops.append(
        Op(
            name=f"optimizer.{update.algorithm}",
            kind="optimizer",
            flop=update.flop,
            bytes_read=update.bytes_read,
            bytes_written=update.bytes_written,
            phase="optimizer",
            dtype=dtype,
            reads=tuple(dict.fromkeys(reads)),
            writes=tuple(dict.fromkeys(written)),
            attrs={
                "algorithm": update.algorithm, "numel": numel, "num_tensors": count, "implementation": update.implementation,
            },
            num_kernels=launches,
            num_calls=launches,
        )
    )  # fmt: skip


def _hold_outputs(ready: _Ready) -> None:
    """A plain loop still holds what the model returned while it goes backward and updates: the last operation reads it."""
    recorder = ready.step.recorder
    indices = [recorder.index(tensor) for tensor in ready.outputs]
    held = [index for index in dict.fromkeys(indices) if recorder.storages[index].role in ("temporary", "activation")]
    if held and recorder.ops:
        last = recorder.ops[-1]
        recorder.ops[-1] = replace(last, reads=tuple(dict.fromkeys((*last.reads, *held))))
        for index in held:
            recorder.storages[index].role = "activation"
