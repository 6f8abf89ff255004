"""One task of a distributed TensorFlow job, or the writer of the static graph of its step; run by `research.tensorflow_jobs`."""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
os.environ["TF_NUM_INTEROP_THREADS"] = "2"

tf: Any = importlib.import_module("tensorflow")

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "mlp": [(256, 512), (512, 512), (512, 10)],
    "cnn": [(3, 3, 3, 16), (3, 3, 16, 32), (2048, 10)],
    "wide": [(1024, 1024), (1024, 10)],
    "rnn": [(128, 256), (64, 256), (64, 10)],
}
INPUTS: dict[str, tuple[int, ...]] = {"mlp": (256,), "cnn": (32, 32, 3), "wide": (1024,), "rnn": (12, 64)}


def scores(model: str, weights: list[Any], data: Any) -> Any:
    if model == "cnn":
        hidden = tf.nn.relu(tf.nn.conv2d(data, weights[0], 2, "SAME"))
        hidden = tf.nn.relu(tf.nn.conv2d(hidden, weights[1], 2, "SAME"))
        return tf.reshape(hidden, [data.shape[0], -1]) @ weights[2]
    if model == "rnn":
        state = memory = tf.zeros([data.shape[0], 64])
        for step in range(data.shape[1]):
            gates = tf.concat([data[:, step], state], 1) @ weights[0] + state @ weights[1]
            first, forget, new, last = tf.split(gates, 4, 1)
            memory = tf.sigmoid(forget) * memory + tf.sigmoid(first) * tf.tanh(new)
            state = tf.sigmoid(last) * tf.tanh(memory)
        return state @ weights[2]
    hidden = data
    for weight in weights[:-1]:
        hidden = tf.nn.relu(hidden @ weight)
    return hidden @ weights[-1]


def build(model: str) -> tuple[list[Any], list[Any]]:
    weights = [tf.Variable(tf.random.normal(shape, stddev=0.05)) for shape in SHAPES[model]]
    return weights, [tf.Variable(tf.zeros(shape)) for shape in SHAPES[model]]


def gradients_of(model: str, weights: list[Any], data: Any, labels: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores(model, weights, data))
        )
    return tape.gradient(loss, weights)


def update(weights: list[Any], moments: list[Any], gradients: list[Any]) -> None:
    for weight, moment, gradient in zip(weights, moments, gradients, strict=True):
        moment.assign(0.9 * moment + gradient)
        weight.assign_sub(0.01 * moment)


def data_of(model: str, batch: int) -> tuple[Any, Any]:
    return tf.ones([batch, *INPUTS[model]]), tf.zeros([batch], tf.int32)


def write(model: str, batch: int, file: Path) -> None:
    weights, moments = build(model)

    def step(data: Any, labels: Any) -> None:
        update(weights, moments, gradients_of(model, weights, data, labels))

    data, labels = data_of(model, batch)
    traced = tf.function(step).get_concrete_function(data, labels)
    file.write_bytes(traced.graph.as_graph_def(add_shapes=True).SerializeToString())


def timed(run: Callable[[], Any], num_steps: int, result: Path) -> None:
    run()
    started = time.monotonic()
    for _ in range(num_steps - 1):
        run()
    result.write_text(json.dumps({"step_s": (time.monotonic() - started) / (num_steps - 1)}))


def mirrored(model: str, batch: int, num_steps: int, result: Path) -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weights, moments = build(model)
    data, labels = data_of(model, batch)

    def replica() -> None:
        context = tf.distribute.get_replica_context()
        found = gradients_of(model, weights, data, labels)
        update(weights, moments, context.all_reduce(tf.distribute.ReduceOp.MEAN, found))

    step = tf.function(lambda: strategy.run(replica))
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    timed(step, num_steps, result if index == 0 else result.with_name(f"other{index}.json"))


def server(model: str, batch: int, num_steps: int, result: Path) -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        own = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
            start=True,
        )
        own.join()
        return
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights, moments = build(model)

    def replica() -> None:
        data, labels = data_of(model, batch)
        update(weights, moments, gradients_of(model, weights, data, labels))

    step = tf.function(lambda: strategy.run(replica))
    workers = len(resolver.cluster_spec().as_dict()["worker"])
    for _ in range(workers):
        coordinator.schedule(step)
    coordinator.join()
    started = time.monotonic()
    for _ in range(num_steps):
        coordinator.schedule(step)
    coordinator.join()
    result.write_text(json.dumps({"step_s": (time.monotonic() - started) / num_steps}))
    # The servers wait for ever; whoever started them stops them.
    os._exit(0)


def main() -> None:
    action, model, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if action == "write":
        write(model, batch, Path(sys.argv[4]))
    else:
        {"mirrored": mirrored, "server": server}[action](model, batch, int(sys.argv[4]), Path(sys.argv[5]))


if __name__ == "__main__":
    main()
