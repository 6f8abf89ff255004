"""Small real nouns for tests."""

from traincast.spec import Cluster, Device, Graph, Link, NodeGroup, Op, Repeat, Tensor


def make_device(**changes: object) -> Device:
    values: dict[str, object] = {
        "name": "testium",
        "memory_bytes": 16e9,
        "memory_bytes_per_s": 1e12,
        "matrix_flop_per_s": {"fp16": 1e14, "bf16": 1e14},
        "vector_flop_per_s": {"fp32": 1e13},
        "num_sm": 80,
        "lanes_per_sm": 64,
        "clock_hz": 1e9,
        "l2_bytes": 6e6,
        "power_watts": 300.0,
    }
    return Device(**{**values, **changes})  # type: ignore[arg-type]


def make_cluster(
    *, nodes: int = 1, devices_per_node: int = 1, device: Device | None = None, **changes: object
) -> Cluster:
    values: dict[str, object] = {
        "intra": Link(name="fast", bytes_per_s=1e11, latency_s=2e-6),
        "inter": Link(name="slow", bytes_per_s=1e10, latency_s=1e-5),
    }
    group = NodeGroup(
        device=device or make_device(),
        num_nodes=nodes,
        devices_per_node=devices_per_node,
        **{**values, **changes},  # type: ignore[arg-type]
    )
    return Cluster(name="testbed", groups=(group,))


def make_matmul(*, m: int = 1024, n: int = 1024, k: int = 1024, dtype: str = "fp32", **changes: object) -> Op:
    size = 4 if dtype in ("fp32", "tf32") else 2
    values: dict[str, object] = {
        "name": "aten.mm",
        "kind": "matmul",
        "flop": 2.0 * m * n * k,
        "bytes_read": float(size * (m * k + k * n)),
        "bytes_written": float(size * m * n),
        "dtype": dtype,
        "attrs": {"batch": 1, "m": m, "n": n, "k": k, "layout": "tn"},
    }
    return Op(**{**values, **changes})  # type: ignore[arg-type]


def make_mlp(*, layers: int = 4, width: int = 256, batch: int = 32, folded: bool = True) -> Graph:
    """layers x linear+relu, with backward and an SGD step; the tape every training graph has."""
    tensors: list[Tensor] = [Tensor(shape=(batch, width), dtype="fp32", role="input", name="x")]
    ops: list[Op] = []
    count = layers if folded else 1
    rounds = 1 if folded else layers

    def add(shape: tuple[int, ...], role: str, name: str, copies: int = 1) -> int:
        tensors.append(Tensor(shape=shape, dtype="fp32", role=role, name=name, copies=copies))
        return len(tensors) - 1

    weights = [add((width, width), "parameter", f"w{i}", count) for i in range(rounds)]
    grads = [add((width, width), "gradient", f"dw{i}", count) for i in range(rounds)]
    saved: list[tuple[int, int, int]] = []
    # A folded layer reads what its previous repetition wrote; the first repetition's input is added by hand.
    current = add((batch, width), "activation", "carried") if folded else 0
    carried = current
    start = len(ops)
    for i in range(rounds):
        hidden = add((batch, width), "activation", f"h{i}")
        out = carried if folded else add((batch, width), "activation", f"a{i}")
        ops.append(
            make_matmul(m=batch, n=width, k=width, reads=(current, weights[i]), writes=(hidden,), layer=f"l.{i}")
        )
        ops.append(_pointwise("aten.relu", batch * width, reads=(hidden,), writes=(out,), layer=f"l.{i}"))
        saved.append((current, hidden, weights[i]))
        current = out
    repeats = [Repeat(start=start, stop=len(ops), count=layers)] if folded else []
    gradient = add((batch, width), "activation", "grad")
    ops.append(
        _pointwise("aten.mse_loss_backward", batch * width, reads=(current,), writes=(gradient,), phase="backward")
    )
    start = len(ops)
    for i in reversed(range(rounds)):
        source, hidden, weight = saved[i]
        inner = add((batch, width), "activation", f"dh{i}")
        outer = gradient if folded else add((batch, width), "activation", f"dx{i}")
        common: dict[str, object] = {"phase": "backward", "layer": f"l.{i}"}
        ops.append(
            _pointwise("aten.threshold_backward", batch * width, reads=(gradient, hidden), writes=(inner,), **common)
        )
        ops.append(make_matmul(m=width, n=width, k=batch, reads=(inner, source), writes=(grads[i],), **common))
        ops.append(make_matmul(m=batch, n=width, k=width, reads=(inner, weight), writes=(outer,), **common))
        gradient = outer
    if folded:
        repeats.append(Repeat(start=start, stop=len(ops), count=layers))
    numel = layers * width * width
    ops.append(
        Op(
            name="sgd",
            kind="optimizer",
            flop=2.0 * numel,
            bytes_read=8.0 * numel,
            bytes_written=4.0 * numel,
            phase="optimizer",
            reads=tuple(weights + grads),
            writes=tuple(weights),
            attrs={"algorithm": "sgd", "numel": numel, "num_tensors": layers, "implementation": "foreach"},
        )
    )
    return Graph(name="mlp", ops=tuple(ops), tensors=tuple(tensors), batch_size=batch, repeats=tuple(repeats))


def _pointwise(name: str, numel: int, **changes: object) -> Op:
    values: dict[str, object] = {
        "name": name,
        "kind": "elementwise",
        "flop": float(numel),
        "bytes_read": 4.0 * numel,
        "bytes_written": 4.0 * numel,
        "attrs": {"function": name.split(".")[-1], "numel": numel, "num_inputs": 1},
    }
    return Op(**{**values, **changes})  # type: ignore[arg-type]
