"""Writes what TensorFlow and Keras write today, for the tests to read: graphs, SavedModels, .keras and .meta files.

Run in a process of its own, so that the tests and the reader never import TensorFlow.
"""

import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import tensorflow as tf
from keras import layers

BATCH, SEQ, VOCAB, HIDDEN, HEADS, DEPTH = 4, 16, 100, 32, 4, 2


def transformer(*, causal: bool) -> Any:
    ids = keras.Input((SEQ,), dtype="int32")
    x = layers.Embedding(VOCAB, HIDDEN)(ids) + layers.Embedding(SEQ, HIDDEN)(keras.ops.arange(SEQ))
    for _ in range(DEPTH):
        attended = layers.MultiHeadAttention(HEADS, HIDDEN // HEADS)(x, x, use_causal_mask=causal)
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(attended))
        x = layers.LayerNormalization()(x + layers.Dense(HIDDEN)(layers.Dense(4 * HIDDEN, activation="gelu")(x)))
    return keras.Model(ids, layers.Dense(VOCAB)(x) if causal else layers.Dense(3)(x[:, 0]))


def recurrent(kind: str) -> Any:
    ids = keras.Input((SEQ,), dtype="int32")
    x = getattr(layers, kind)(HIDDEN, return_sequences=True)(layers.Embedding(VOCAB, HIDDEN)(ids))
    return keras.Model(ids, layers.Dense(3)(getattr(layers, kind)(HIDDEN)(x)))


def recommender() -> Any:
    dense, categories = keras.Input((13,)), [keras.Input((1,), dtype="int32") for _ in range(3)]
    bottom = layers.Dense(HIDDEN, activation="relu")(dense)
    tables = [layers.Flatten()(layers.Embedding(VOCAB, HIDDEN)(category)) for category in categories]
    stacked = keras.ops.stack([bottom, *tables], 1)
    crossed = keras.ops.matmul(stacked, keras.ops.transpose(stacked, (0, 2, 1)))
    return keras.Model([dense, *categories], layers.Dense(3)(layers.Concatenate()([bottom, layers.Flatten()(crossed)])))


def application(name: str) -> Callable[[], Any]:
    return lambda: getattr(keras.applications, name)(weights=None, input_shape=(64, 64, 3), classes=10)


MODELS: dict[str, Callable[[], Any]] = {
    "bert": lambda: transformer(causal=False), "gpt": lambda: transformer(causal=True), "lstm": lambda: recurrent("LSTM"),
    "gru": lambda: recurrent("GRU"), "dlrm": recommender, "resnet50": application("ResNet50"),
    "mobilenetv2": application("MobileNetV2"), "efficientnetb0": application("EfficientNetB0"),
    "densenet121": application("DenseNet121"),
}  # fmt: skip
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: keras.optimizers.Adam(),
    "adamw": lambda: keras.optimizers.AdamW(),
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
}


def specifications(model: Any) -> tuple[Any, Any]:
    inputs = [tf.TensorSpec((BATCH, *tensor.shape[1:]), tensor.dtype) for tensor in model.inputs]
    labels = tf.TensorSpec((BATCH, *model.output.shape[1:-1]), tf.int32)
    return inputs[0] if len(inputs) == 1 else inputs, labels


def profile(function: Any) -> dict[str, int]:
    """FLOP of each kind of operation by the profiler of TensorFlow."""
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options = {**options, "output": "none", "min_float_ops": 0}
    found = tf.compat.v1.profiler.profile(function.graph, cmd="op", options=options)
    counted = {child.name: int(child.float_ops) for child in _children(found) if child.float_ops}
    # The profiler has no entry for sums of products by index.
    return {**counted, "Einsum": sum(map(sum_of_products, function.graph.get_operations()))}


def sum_of_products(operation: Any) -> int:
    if operation.type != "Einsum":
        return 0
    left = operation.get_attr("equation").decode().partition("->")[0]
    sizes: dict[str, int] = {}
    for labels, tensor in zip(left.split(","), operation.inputs, strict=True):
        sizes.update(zip(labels, tensor.shape.as_list(), strict=True))
    return 2 * math.prod(sizes.values())


def _children(node: Any) -> list[Any]:
    return [one for child in node.children for one in (child, *_children(child))]


def write_frozen(directory: Path, name: str, function: Any) -> None:
    """The graph of TensorFlow 1: variables are constants, and everything is in one list of nodes."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    frozen = convert_variables_to_constants_v2(function)
    (directory / f"{name}.frozen.pb").write_bytes(frozen.graph.as_graph_def(add_shapes=True).SerializeToString())


def write(directory: Path, name: str, model: Any, optimizer: Any, *, whole: bool, profiled: bool = False) -> None:
    optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    given, labels = specifications(model)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    def save(function: Any, file: str) -> None:
        (directory / file).write_bytes(function.graph.as_graph_def(add_shapes=True).SerializeToString())

    traced = step.get_concrete_function(given, labels)
    save(traced, f"{name}.step.pb")
    facts = {
        "trainable": sum(math.prod(v.shape) for v in model.trainable_variables),
        "state_bytes": sum(4 * math.prod(v.shape) for v in optimizer.variables if len(v.shape)),
        "frozen": sum(math.prod(v.shape) for v in model.non_trainable_variables if "seed" not in v.path),
    }
    if profiled:
        forward = tf.function(lambda x: model(x, training=False)).get_concrete_function(given)
        facts["profile"] = profile(forward)
        write_frozen(directory, name, forward)
        with traced.graph.as_default():
            tf.compat.v1.train.export_meta_graph(str(directory / f"{name}.meta"))
    (directory / f"{name}.json").write_text(json.dumps(facts))
    if whole:
        model.compile(optimizer=optimizer, loss=loss)
        save(tf.function(model.train_step).get_concrete_function((given, labels)), f"{name}.fit.pb")
        model.export(str(directory / f"{name}.export"), verbose=False)
        tf.saved_model.save(model, str(directory / f"{name}.saved"))
        model.save(directory / f"{name}.keras")


def write_old(directory: Path) -> None:
    """TensorFlow 1: placeholders, variables by reference, a slot optimizer and a saver in one graph."""
    v1 = tf.compat.v1
    with v1.Graph().as_default():
        v1.disable_resource_variables()
        images, labels = v1.placeholder(tf.float32, [None, 8, 8, 3]), v1.placeholder(tf.int32, [None])
        kernel, head = v1.get_variable("kernel", [3, 3, 3, 8]), v1.get_variable("head", [128, 10])
        hidden = tf.reshape(tf.nn.relu(tf.nn.conv2d(images, kernel, 2, "SAME")), [-1, 128])
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=tf.matmul(hidden, head))
        v1.train.AdamOptimizer().minimize(tf.reduce_mean(loss), global_step=v1.train.get_or_create_global_step())
        v1.train.Saver()
        v1.train.export_meta_graph(str(directory / "old.meta"))
    with v1.Graph().as_default():
        write_old_loop(directory / "loop.meta")
    v1.enable_resource_variables()


def write_old_loop(file: Path) -> None:
    """A recurrent network as TensorFlow 1 ran it: a loop of five kinds of nodes, arrays by handle, stacks for the way back."""
    v1 = tf.compat.v1
    v1.disable_control_flow_v2()
    data, labels = v1.placeholder(tf.float32, [SEQ, BATCH, HIDDEN]), v1.placeholder(tf.int32, [BATCH])
    kernel, head = v1.get_variable("kernel", [2 * HIDDEN, HIDDEN]), v1.get_variable("head", [HIDDEN, 10])
    steps = tf.TensorArray(tf.float32, SEQ).unstack(data)
    outputs = tf.TensorArray(tf.float32, SEQ)

    def body(time: Any, state: Any, written: Any) -> Any:
        state = tf.tanh(tf.matmul(tf.concat([steps.read(time), state], 1), kernel))
        return time + 1, state, written.write(time, state)

    _, last, written = v1.while_loop(
        lambda time, *_: time < SEQ, body, [tf.constant(0), tf.zeros([BATCH, HIDDEN]), outputs]
    )
    scores = tf.matmul(last + tf.reduce_mean(written.stack(), 0), head)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
    v1.train.AdamOptimizer().minimize(tf.reduce_mean(loss))
    v1.train.export_meta_graph(str(file))
    v1.enable_control_flow_v2()


def write_all(directory: Path, names: list[str]) -> None:
    """Every form of each model, for `benchmarks/tensorflow_matrix.py`."""
    for name in names:
        mixed = name.startswith("mixed_")
        keras.mixed_precision.set_global_policy("mixed_float16" if mixed else "float32")
        for kind in OPTIMIZERS:
            keras.backend.clear_session()
            optimizer = OPTIMIZERS[kind]()
            write(
                directory, f"{name}.{kind}", MODELS[name.removeprefix("mixed_")](),
                keras.mixed_precision.LossScaleOptimizer(optimizer) if mixed else optimizer,
                whole=kind == "adam", profiled=kind == "adam",
            )  # fmt: skip
    write_old(directory)


def main() -> None:
    directory = Path(sys.argv[1])
    if "--all" in sys.argv:
        write_all(directory, sys.argv[2].split(","))
        return
    for name in sys.argv[2].split(","):
        for kind in ("adam", "adamw", "sgd") if name == "bert" else ("adam",):
            model = MODELS[name]()
            whole = name in ("bert", "lstm") and kind == "adam"
            write(directory, f"{name}.{kind}", model, OPTIMIZERS[kind](), whole=whole, profiled=whole)
    keras.mixed_precision.set_global_policy("mixed_float16")
    scaled = keras.mixed_precision.LossScaleOptimizer(OPTIMIZERS["adam"]())
    write(directory, "mixed.adam", MODELS["bert"](), scaled, whole=False)
    write_old(directory)


if __name__ == "__main__":
    main()
