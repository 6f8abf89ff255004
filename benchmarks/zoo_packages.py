"""Models of many packages for the zoo: a few of each by hand, and some drawn by a rule that looks at names only.

The rule: the classes (or names) of a package in the order of the alphabet, every n-th of them; where the real model does not run
on the inputs that its signature suggests, the next one that does.
"""

import contextlib
import importlib
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

Entry = tuple[str, str, Callable[[], nn.Module], Callable[[], Any]]

Z = torch.zeros


def ids(*sizes: int, high: int = 100) -> Any:
    return torch.arange(torch.Size(sizes).numel()).reshape(sizes) % high


def edges(nodes: int = 60, count: int = 240) -> Any:
    first = ids(count, high=nodes)
    return torch.stack([first, (first * 7 + 3) % nodes])


def find(path: str) -> Any:
    module, _, name = path.partition(":")
    made = importlib.import_module(module)
    for part in name.split("."):
        made = getattr(made, part)
    return made


class Through(nn.Module):
    """A part that is called otherwise than by forward, or behind a layer of its own."""

    def __init__(self, part: Any, call: Callable[[Any, Any], Any], before: nn.Module | None = None) -> None:
        super().__init__()
        self.part, self.before, self._call = part, before, call

    def forward(self, *given: Any) -> Any:
        if self.before is not None:
            given = (self.before(given[0]), *given[1:])
        return self._call(self.part, *given)


class Solved(nn.Module):
    """A neural differential equation."""

    def __init__(self, solve: Callable[..., Any], field: nn.Module) -> None:
        super().__init__()
        self.field, self._solve = field, solve

    def forward(self, x: Any) -> Any:
        return self._solve(self.field, x)


class Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))

    def forward(self, t: Any, x: Any) -> Any:
        return self.net(x)


class Noisy(nn.Module):
    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        self.drift, self.noise = nn.Linear(8, 8), nn.Linear(8, 8)

    def f(self, t: Any, y: Any) -> Any:
        return self.drift(y)

    def g(self, t: Any, y: Any) -> Any:
        return self.noise(y).sigmoid()


class Process(nn.Module):
    """Deep kernel learning: a network, a Gaussian process and its marginal likelihood."""

    def __init__(self) -> None:
        super().__init__()
        gpytorch = importlib.import_module("gpytorch")
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        self._normal = gpytorch.distributions.MultivariateNormal

    def forward(self, x: Any, y: Any) -> Any:
        z = self.net(x)
        return -self.likelihood(self._normal(self.mean(z), self.kernel(z))).log_prob(y)


def ode(method: str) -> Callable[..., Any]:
    def solve(field: Any, x: Any) -> Any:
        options = {} if method == "dopri5" else {"options": {"step_size": 0.25}}
        return find("torchdiffeq:odeint")(field, x, torch.tensor([0.0, 1.0]), method=method, **options)[-1]

    return solve


def sde(field: Any, x: Any) -> Any:
    return find("torchsde:sdeint")(field, x, torch.tensor([0.0, 0.5]), dt=0.1, method="euler")[-1]


def columns() -> Any:
    sparse = find("deepctr_torch.inputs:SparseFeat")
    return [sparse(f"c{number}", 100, embedding_dim=8) for number in range(6)]


def spiking(layers: Callable[[], list[nn.Module]]) -> nn.Module:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers())

        def forward(self, x: Any) -> Any:
            state: dict[int, Any] = {}
            total = None
            for _ in range(4):
                y = x
                for number, layer in enumerate(self.layers):
                    made = layer(y) if isinstance(layer, nn.Linear) else layer(y, state.get(number))
                    if isinstance(made, tuple):
                        y, state[number] = made
                    else:
                        y = made
                total = y if total is None else total + y
            return total

    return Steps()


def image(size: int = 64, channels: int = 3, batch: int = 2) -> Callable[[], Any]:
    return lambda: Z(batch, channels, size, size)


def words(length: int = 64, high: int = 100) -> Callable[[], Any]:
    return lambda: ids(2, length, high=high)


def rows(*shape: int) -> Callable[[], Any]:
    return lambda: Z(*shape)


ATTENDING = {"num_tokens": 100, "dim": 64, "depth": 2}


def by_hand() -> Iterator[tuple[str, str, Callable[[], Any], Callable[[], Any]]]:
    """Package, name, builder, inputs."""
    smp = "segmentation_models_pytorch:"
    for name in ("Unet", "FPN", "DeepLabV3Plus", "Linknet", "PSPNet"):
        yield (
            "segmentation_models_pytorch", name, lambda name=name: find(smp + name)("resnet18", encoder_weights=None),
            image(),
        )  # fmt: skip
    for name in ("ViT", "SimpleViT"):
        yield (
            "vit_pytorch", name,
            lambda name=name: find(f"vit_pytorch:{name}")(
                image_size=64, patch_size=16, num_classes=10, dim=64, depth=2, heads=4, mlp_dim=128
            ),
            image(),
        )  # fmt: skip
    yield (
        "x_transformers", "decoder",
        lambda: find("x_transformers:TransformerWrapper")(
            num_tokens=100, max_seq_len=64, attn_layers=find("x_transformers:Decoder")(dim=64, depth=2, heads=4)
        ),
        words(),
    )  # fmt: skip
    yield (
        "x_transformers", "encoder-rotary",
        lambda: find("x_transformers:TransformerWrapper")(
            num_tokens=100, max_seq_len=64,
            attn_layers=find("x_transformers:Encoder")(dim=64, depth=2, heads=4, rotary_pos_emb=True, ff_glu=True),
        ),
        words(),
    )  # fmt: skip
    yield (
        "pytorch_tabnet", "TabNet",
        lambda: find("pytorch_tabnet.tab_network:TabNet")(16, 3, group_attention_matrix=torch.eye(16)), rows(32, 16),
    )  # fmt: skip
    yield "e3nn", "fully-connected", lambda: find("e3nn.nn:FullyConnectedNet")([8, 32, 4], torch.relu), rows(16, 8)
    yield (
        "e3nn", "tensor-product",
        lambda: find("e3nn.o3:FullyConnectedTensorProduct")("8x0e+4x1o", "8x0e+4x1o", "8x0e+4x1o"),
        lambda: (Z(16, 20), Z(16, 20)),
    )  # fmt: skip
    yield (
        "nflows", "autoregressive",
        lambda: find("nflows.transforms:MaskedAffineAutoregressiveTransform")(features=8, hidden_features=32), rows(16, 8),
    )  # fmt: skip
    yield (
        "open_clip", "ViT-S-32",
        lambda: find("open_clip:CLIP")(
            64, {"image_size": 64, "layers": 2, "width": 64, "patch_size": 16, "head_width": 16},
            {"context_length": 16, "vocab_size": 100, "width": 64, "heads": 4, "layers": 2},
        ),
        lambda: (Z(2, 3, 64, 64), ids(2, 16)),
    )  # fmt: skip
    yield (
        "denoising_diffusion_pytorch", "Unet",
        lambda: find("denoising_diffusion_pytorch:Unet")(dim=16, dim_mults=(1, 2)), lambda: (Z(2, 3, 32, 32), Z(2)),
    )  # fmt: skip
    yield "lightly", "simclr-head", lambda: find("lightly.models.modules:SimCLRProjectionHead")(64, 64, 32), rows(8, 64)
    yield (
        "efficientnet_pytorch",
        "b0",
        lambda: find("efficientnet_pytorch:EfficientNet").from_name("efficientnet-b0"),
        image(),
    )
    for name in ("se_resnet50", "xception"):
        yield (
            "pretrainedmodels", name,
            lambda name=name: find(f"pretrainedmodels:{name}")(num_classes=1000, pretrained=None), image(224),
        )  # fmt: skip
    for method in ("rk4", "dopri5"):
        yield "torchdiffeq", method, lambda method=method: Solved(ode(method), Field()), rows(16, 8)
    yield "torchsde", "euler", lambda: Solved(sde, Noisy()), rows(16, 8)
    yield "gpytorch", "deep-kernel", Process, lambda: (torch.linspace(0, 1, 256).reshape(32, 8), Z(32))
    yield (
        "vector_quantize_pytorch",
        "lookup-free",
        lambda: nn.Sequential(nn.Linear(16, 8), find("vector_quantize_pytorch:FSQ")([8, 5, 5, 5], dim=8), _First()),
        rows(2, 32, 16),
    )
    yield (
        "perceiver_pytorch", "Perceiver",
        lambda: find("perceiver_pytorch:Perceiver")(
            num_freq_bands=4, max_freq=10.0, depth=1, num_latents=16, latent_dim=64, input_channels=3, num_classes=10,
            cross_heads=1, latent_heads=4, cross_dim_head=16, latent_dim_head=16,
        ),
        rows(2, 32, 32, 3),
    )  # fmt: skip
    yield (
        "performer_pytorch",
        "lm",
        lambda: find("performer_pytorch:PerformerLM")(max_seq_len=64, heads=4, causal=False, **ATTENDING),
        words(),
    )
    yield (
        "local_attention", "transformer",
        lambda: find("local_attention.transformer:LocalTransformer")(
            max_seq_len=64, local_attn_window_size=16, heads=4, **ATTENDING
        ),
        words(),
    )  # fmt: skip
    yield "linformer", "lm", lambda: find("linformer:LinformerLM")(seq_len=64, heads=4, k=16, **ATTENDING), words()
    yield (
        "conformer", "block",
        lambda: find("conformer:Conformer")(dim=64, depth=2, dim_head=16, heads=4), rows(2, 50, 64),
    )  # fmt: skip
    yield (
        "nystrom_attention",
        "Nystromformer",
        lambda: find("nystrom_attention:Nystromformer")(dim=64, depth=2, heads=4, dim_head=16, num_landmarks=16),
        rows(2, 64, 64),
    )
    yield (
        "nystrom_attention",
        "attention",
        lambda: find("nystrom_attention:NystromAttention")(dim=64, heads=4, dim_head=16, num_landmarks=16),
        rows(2, 64, 64),
    )
    yield (
        "snntorch", "leaky",
        lambda: spiking(lambda: [nn.Linear(16, 32), find("snntorch:Leaky")(beta=0.9, init_hidden=False), nn.Linear(32, 4)]),
        rows(8, 16),
    )  # fmt: skip
    yield (
        "norse",
        "lif",
        lambda: spiking(lambda: [nn.Linear(16, 32), find("norse.torch:LIFCell")(), nn.Linear(32, 4)]),
        rows(8, 16),
    )
    yield (
        "spikingjelly", "lif",
        lambda: nn.Sequential(
            nn.Linear(16, 32), find("spikingjelly.activation_based.neuron:LIFNode")(step_mode="s"), nn.Linear(32, 4)
        ),
        rows(8, 16),
    )  # fmt: skip
    for name in ("DeepFM", "DCN", "xDeepFM"):
        yield (
            "deepctr_torch", name,
            lambda name=name: find(f"deepctr_torch.models:{name}")(columns(), columns(), device="cpu"),
            lambda: ids(32, 6).float(),
        )  # fmt: skip
    for name, given in (("FNO", {"n_modes": (8, 8)}), ("TFNO", {"n_modes": (8, 8), "factorization": None})):
        yield (
            "neuralop", name,
            lambda name=name, given=given: find(f"neuralop.models:{name}")(
                in_channels=3, out_channels=1, hidden_channels=16, **given
            ),
            image(32),
        )  # fmt: skip
    for name in ("yolov8n", "yolo11n", "yolov10n"):
        yield (
            "ultralytics", name,
            lambda name=name: find("ultralytics.nn.tasks:DetectionModel")(f"{name}.yaml", verbose=False), image(128),
        )  # fmt: skip
    yield (
        "egnn_pytorch",
        "EGNN",
        lambda: find("egnn_pytorch:EGNN")(dim=32),
        lambda: (torch.rand(2, 16, 32), torch.rand(2, 16, 3)),
    )
    yield "g_mlp_pytorch", "lm", lambda: find("g_mlp_pytorch:gMLP")(seq_len=64, **ATTENDING), words()
    yield (
        "mlp_mixer_pytorch", "mixer",
        lambda: find("mlp_mixer_pytorch:MLPMixer")(image_size=64, channels=3, patch_size=16, dim=64, depth=2, num_classes=10),
        image(),
    )  # fmt: skip
    yield "minGRU_pytorch", "lm", lambda: find("minGRU_pytorch.minLM:minLM")(**ATTENDING), words()
    yield (
        "MEGABYTE_pytorch", "lm",
        lambda: find("MEGABYTE_pytorch:MEGABYTE")(
            num_tokens=100, dim=(64, 32), max_seq_len=(16, 4), depth=(2, 1), dim_head=16, heads=4, flash_attn=False
        ),
        words(),
    )  # fmt: skip
    yield (
        "soft_moe_pytorch",
        "SoftMoE",
        lambda: find("soft_moe_pytorch:SoftMoE")(dim=64, seq_len=64, num_experts=4),
        rows(2, 64, 64),
    )
    yield (
        "st_moe_pytorch",
        "MoE",
        lambda: find("st_moe_pytorch:MoE")(dim=64, num_experts=4),
        lambda: torch.rand(2, 64, 64),
    )
    yield (
        "invariant_point_attention", "block",
        lambda: find("invariant_point_attention:IPABlock")(dim=32, heads=4),
        lambda: {"x": Z(1, 24, 32), "pairwise_repr": Z(1, 24, 24, 32), "rotations": torch.eye(3).expand(1, 24, 3, 3),
            "translations": Z(1, 24, 3), "mask": torch.ones(1, 24).bool()},
    )  # fmt: skip
    yield (
        "zuko",
        "nsf",
        lambda: Through(find("zuko.flows:NSF")(4, transforms=2), lambda flow, x: -flow().log_prob(x)),
        lambda: torch.rand(16, 4),
    )
    yield (
        "x_clip", "CLIP",
        lambda: find("x_clip:CLIP")(
            dim_text=64, dim_image=64, dim_latent=32, num_text_tokens=100, text_enc_depth=1, text_seq_len=16, text_heads=4,
            visual_enc_depth=1, visual_image_size=64, visual_patch_size=16, visual_heads=4,
        ),
        lambda: {"text": ids(2, 16), "image": Z(2, 3, 64, 64), "return_loss": True},
    )  # fmt: skip
    yield (
        "recurrent_memory_transformer_pytorch",
        "lm",
        lambda: find("recurrent_memory_transformer_pytorch:RecurrentMemoryTransformer")(
            num_memory_tokens=8, seq_len=64, heads=4, **ATTENDING
        ),
        words(),
    )
    yield "kornia", "hardnet", lambda: find("kornia.feature:HardNet")(pretrained=False), image(32, 1, 8)
    yield (
        "kornia",
        "vit",
        lambda: find("kornia.models.vit:VisionTransformer")(
            image_size=64, patch_size=16, embed_dim=64, depth=2, num_heads=4
        ),
        image(),
    )
    yield "normflows", "coupling", lambda: find("normflows.nets:MLP")([8, 32, 32, 8]), rows(16, 8)
    yield (
        "demucs",
        "HDemucs",
        lambda: find("demucs.demucs:Demucs")(["a", "b"], channels=8, depth=3, lstm_layers=1),
        rows(1, 2, 8192),
    )
    yield (
        "torchcde",
        "linear",
        lambda: Through(
            Field(), lambda part, x: part(None, find("torchcde:LinearInterpolation")(x).evaluate(torch.tensor(0.5)))
        ),
        lambda: torch.rand(4, 10, 8),
    )
    yield (
        "h_transformer_1d",
        "lm",
        lambda: find("h_transformer_1d:HTransformer1D")(
            max_seq_len=64, heads=4, dim_head=16, block_size=16, causal=True, **ATTENDING
        ),
        words(),
    )
    yield "torchvision", "shufflenet", lambda: find("torchvision.models:shufflenet_v2_x0_5")(weights=None), image(64)


class _First(nn.Module):
    def forward(self, given: Any) -> Any:
        return given[0] if isinstance(given, tuple) else given


# Drawn by their names


def runs(entry: Entry) -> bool:
    """In a process of its own: some models end it."""
    child = os.fork()
    if child == 0:
        os._exit(0 if _runs(entry) else 1)
    return os.waitpid(child, 0)[1] == 0


def _runs(entry: Entry) -> bool:
    """Whether the model itself runs on what its signature suggests: without memory, else for real where it is small."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            count = sum(parameter.numel() for parameter in entry[2]().parameters() if parameter.requires_grad)
    except BaseException:
        return False
    if not 0 < count < LARGEST:
        return False
    for mode in (FakeTensorMode(allow_non_fake_inputs=True), contextlib.nullcontext()):
        try:
            with mode:
                model, given = entry[2](), entry[3]()
                model(**given) if isinstance(given, dict) else model(*(given if isinstance(given, tuple) else (given,)))
            return True
        except BaseException:
            if count > LARGEST_RUN:
                return False
    return False


LARGEST, LARGEST_RUN = 400e6, 2e6
"""Parameters of a model that is drawn, and of one that is run for real."""


def draw(entries: list[Entry], count: int) -> Iterator[Entry]:
    """Every n-th; from there on the first that runs."""
    step = max(1, len(entries) // count)
    taken: set[str] = set()
    for start in range(0, len(entries), step):
        for entry in entries[start : start + step]:
            if entry[1] not in taken and runs(entry):
                taken.add(entry[1])
                yield entry
                break


SUGGESTED: dict[str, Any] = {
    "spatial_dims": 2, "dimensions": 2, "in_channels": 3, "out_channels": 2, "channels": (8, 16, 32), "strides": (2, 2),
    "img_size": (64, 64), "in_shape": (3, 64, 64), "out_shape": (2,), "num_classes": 2, "n_channels": 3, "feature_size": 12,
    "kernel_size": (3, 3, 3), "upsample_kernel_size": (2, 2), "hidden_size": 48, "patch_size": (16, 16), "latent_size": 8,
    "input_size": (64, 64), "start_size": 8, "features": (8, 8, 16, 32, 32, 8), "pretrained": False, "num_layers": 2,
    "layers": (1, 1, 1, 1), "block": "basic", "block_inplanes": (8, 16, 32, 64), "width_multi": 1, "latent_shape": (8,),
    "inplanes": 8, "hidden_channels": 32, "heads": 1, "num_relations": 1, "edge_dim": None, "dim": 2, "K": 2, "k": 2,
    "num_filters": 16, "num_bases": 2, "num_heads": 1, "out_feats": 16, "in_feats": 16, "alpha": 0.1, "num_channels": (8, 16),
}  # fmt: skip


def suggest(function: Any, **given: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    needed = {name for name, each in parameters.items() if each.default is inspect.Parameter.empty}
    known = {**SUGGESTED, **given}
    return {name: known[name] for name in parameters if name in known and (name in needed or name in given)}


def drawn_timm() -> Iterator[Entry]:
    yield from draw(_of_timm(), 16)


def drawn_transformers() -> Iterator[Entry]:
    yield from draw(_of_transformers(), 18)


def drawn_monai() -> Iterator[Entry]:
    yield from draw(_of_classes("monai.networks.nets", "monai", image(64), {}), 12)


def drawn_graphs() -> Iterator[Entry]:
    convolutions = _of_classes(
        "torch_geometric.nn.conv", "torch_geometric", lambda: {"x": Z(60, 16), "edge_index": edges()},
        {"in_channels": 16, "out_channels": 16, "nn": None, "channels": 16},
    )  # fmt: skip
    yield from draw(convolutions, 14)


def drawn_diffusers() -> Iterator[Entry]:
    yield from draw(_of_diffusers(), 8)


DRAWN = (drawn_timm, drawn_transformers, drawn_monai, drawn_graphs, drawn_diffusers)


def _of_timm() -> list[Entry]:
    timm = importlib.import_module("timm")

    def size(name: str) -> int:
        found = timm.get_pretrained_cfg(name)
        return int(found.input_size[-1]) if found else 224

    names = sorted(timm.list_models())
    return [
        (
            "timm (drawn)", name, lambda name=name: timm.create_model(name, pretrained=False),
            lambda name=name: Z(2, 3, size(name), size(name)),
        )
        for name in names
    ]  # fmt: skip


def _of_transformers() -> list[Entry]:
    """Every model type by its own configuration, made small, with the inputs that `config.json` gets."""
    from benchmarks.capture_zoo import PER_KIND, SMALL
    from traincast.capture._huggingface import describe_config

    transformers = importlib.import_module("transformers")

    def described(kind: str) -> Any:
        plain = transformers.AutoConfig.for_model(kind)
        wanted = {**SMALL, **PER_KIND.get(kind, {})}
        content = {key: value for key, value in wanted.items() if hasattr(plain, key) and value is not None}
        return describe_config({**content, "model_type": kind}, seq=32, attention="eager")

    kinds = sorted(transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES)
    return [
        (
            "transformers (drawn)", kind, lambda kind=kind: described(kind).build(),
            lambda kind=kind: described(kind).make_inputs(2),
        )
        for kind in kinds
    ]  # fmt: skip


def _of_classes(home: str, package: str, inputs: Callable[[], Any], given: dict[str, Any]) -> list[Entry]:
    module = importlib.import_module(home)
    classes = {
        name: kind
        for name, kind in sorted(vars(module).items())
        if inspect.isclass(kind) and issubclass(kind, nn.Module) and not name.startswith("_")
    }
    unique = {id(kind): (name, kind) for name, kind in reversed(list(classes.items()))}.values()

    def build(kind: Any) -> nn.Module:
        own = {**given, "nn": nn.Linear(16, 16)} if "nn" in given else given
        made: nn.Module = kind(**suggest(kind, **own))
        return made

    return [
        (f"{package} (drawn)", name, lambda kind=kind: build(kind), inputs) for name, kind in sorted(unique, key=lambda x: x[0])
    ]  # fmt: skip


def _of_diffusers() -> list[Entry]:
    """Models by their default configuration, cut to two layers and few heads."""
    diffusers = importlib.import_module("diffusers")
    cut = {
        "num_layers": 1, "num_single_layers": 1, "num_attention_heads": 2, "attention_head_dim": 24, "sample_size": 16,
        "block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8, "axes_dims_rope": (8, 8, 8),
        "caption_channels": 32, "joint_attention_dim": 32, "cross_attention_dim": 48, "pooled_projection_dim": 32,
        "down_block_types": ("DownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "UpBlock2D"), "text_dim": 32,
        "ffn_dim": 64, "text_embed_dim": 32, "hidden_size": 48, "in_channels": 4, "out_channels": 4, "patch_size": 2,
    }  # fmt: skip
    names = sorted(
        name
        for name in dir(diffusers)
        if name.endswith(("Model", "KL", "2DModel", "3DModel", "Transformer2DModel", "VQModel"))
    )
    skipped = ("OnnxRuntimeModel", "ModelMixin", "MultiControlNetModel", "T2IAdapter")

    def build(name: str) -> nn.Module:
        kind = getattr(diffusers, name)
        parameters = inspect.signature(kind.__init__).parameters
        made: nn.Module = kind(**{key: value for key, value in cut.items() if key in parameters})
        return made

    def inputs(name: str) -> dict[str, Any]:
        kind = getattr(diffusers, name)
        accepted = inspect.signature(kind.forward).parameters
        wide = name.endswith("3DModel") or "Video" in name or "Wan" in name
        known = {
            "sample": Z(2, 4, 16, 16), "hidden_states": Z(2, 4, 4, 16, 16) if wide else Z(2, 4, 16, 16),
            "timestep": torch.ones(2), "encoder_hidden_states": Z(2, 7, 32), "pooled_projections": Z(2, 32),
            "class_labels": ids(2),
        }  # fmt: skip
        needed = {key for key, each in accepted.items() if each.default is inspect.Parameter.empty}
        return {key: known[key] for key in accepted if key in known and (key in needed or key != "class_labels")}

    return [
        ("diffusers (drawn)", name, lambda name=name: build(name), lambda name=name: inputs(name))
        for name in names
        if name not in skipped and inspect.isclass(getattr(diffusers, name, None))
    ]  # fmt: skip
