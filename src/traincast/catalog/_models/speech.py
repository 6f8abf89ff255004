"""Speech and recurrent models: DeepSpeech 2, RNN-T, Tacotron 2, WaveGlow, LSTM language models."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from traincast.catalog._models.layers import (
    activation,
    add,
    batch_norm,
    concat,
    conv,
    copy,
    cross_entropy,
    dropout,
    embedding,
    linear,
    matmul,
    mean_loss,
    multiply,
    pointwise,
    rnn,
    softmax,
    split,
    sum_to,
    take,
)
from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.tape import Gradients, Tape, Value
from traincast.catalog._models.vision import half_input
from traincast.spec import Attr, Graph

if TYPE_CHECKING:
    from traincast.catalog._workloads import Sizes


def build_deepspeech2(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """Two convolutions, bidirectional recurrent layers with batch norm between, CTC (Amodei 2015; deepspeech.pytorch)."""
    config = entry["config"]
    tape = Tape(recipe)
    batch, hidden, classes = sizes.batch, config["hidden"], sizes.num_classes or config.get("num_classes", 29)
    frames = sizes.seq or config.get("seq", 330)
    tape.assume(f"every utterance has {frames} frames of 10 ms (the mean length of the data set)")
    x = half_input(tape, tape.input("spectrogram", (batch, 1, 161, frames), "fp32"))
    for number, (kernel_size, stride, padding) in enumerate((((41, 11), (2, 2), (20, 5)), ((21, 11), (2, 1), (10, 5)))):
        with tape.scope(f"conv{number}"):
            x = conv(tape, x, 32, kernel_size, stride=stride, padding=padding, bias=True)
            x = activation(tape, "relu6", batch_norm(tape, x), inplace=recipe.inplace)
    steps = x.shape[3]
    x = copy(tape, x, (steps, batch, x.shape[1] * x.shape[2]), back=True)
    for number in range(config["n_layers"]):
        with tape.scope(f"rnn{number}"):
            if number:
                x = sequence_norm(tape, x)
            both = rnn(tape, x, hidden, directions=2, cell=config.get("cell", "gru"), name="cell", bias=False)
            x = sum_directions(tape, both, hidden)
    with tape.scope("head"):
        logits = linear(tape, sequence_norm(tape, x), classes, bias=False, name="fc")
    outputs = [ctc_loss(tape, logits)] if recipe.trains and recipe.loss else [logits]
    return tape.finish(
        outputs,
        name=name,
        batch_size=batch,
        tokens_per_sample=frames,
        samples_unit="utterances",
        source=entry["source"],
    )


def sequence_norm(tape: Tape, x: Value) -> Value:
    """Batch norm over all steps and samples at once."""
    steps, batch, width = x.shape
    return tape.view(batch_norm(tape, tape.view(x, (steps * batch, width)), channels=width), (steps, batch, width))


def sum_directions(tape: Tape, both: Value, hidden: int) -> Value:
    """Forward and backward outputs added; the gradient of each half is the same."""
    steps, batch, _ = both.shape
    out = tape.new((steps, batch, hidden), both.dtype)
    attrs: dict[str, Attr] = {"function": "sum", "rows": out.numel, "cols": 2}
    tape.op("aten.sum", "reduce", (both,), (out,), attrs, flop=out.numel, calls=2)

    def backward(g: Value) -> Gradients:
        result = tape.gradient_like(both)
        tape.op("aten.clone", "copy", (g,), (result,), {"function": "expand", "numel": result.numel}, calls=3)
        return (result,)

    return tape.register(out, (both,), backward)


def ctc_loss(tape: Tape, logits: Value) -> Value:
    """Log-softmax and the forward-backward recursion, one kernel row per step."""
    steps, batch, classes = logits.shape
    with tape.scope("loss"):
        wide = tape.cast(logits, "fp32")
        log = tape.new(wide.shape, "fp32")
        attrs: dict[str, Attr] = {"rows": steps * batch, "cols": classes}
        tape.op("aten._log_softmax", "softmax", (wide,), (log,), attrs, flop=5.0 * wide.numel)

        def log_backward(g: Value) -> Gradients:
            gx = tape.gradient_like(wide)
            tape.op("aten._log_softmax_backward_data", "softmax", (g, log), (gx,), attrs, flop=5.0 * wide.numel)
            return (gx,)

        tape.register(log, (wide,), log_backward)
        loss = tape.new((batch,), "fp32")
        alpha = tape.new((batch, steps, 128), "fp32")
        work: dict[str, Attr] = {"function": "ctc", "rows": batch, "cols": steps * 128}
        tape.op("aten._ctc_loss", "reduce", (log,), (loss, alpha), work, flop=6.0 * alpha.numel, kernels=2)

        def ctc_backward(g: Value) -> Gradients:
            gx = tape.new(log.shape, "fp32")
            tape.op(
                "aten._ctc_loss_backward", "reduce", (g, log, alpha), (gx,), work, flop=8.0 * alpha.numel, kernels=4
            )
            return (gx,)

        return tape.register(loss, (log,), ctc_backward)


WORD_FRAMES = 8
"""Stacked frames (30 ms) of one word piece: LibriSpeech has 33 words of 1.6 pieces in 12.3 s (Panayotov et al. 2015)."""


STRETCHED = 1.22
"""The longest utterance of a batch beside the mean: buckets hold utterances of about one length (13 s where the mean is 12.3),
and each is then stretched or shortened by up to 15% (MLPerf's reference, speed perturbation)."""


def build_rnnt(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """RNN transducer of MLPerf: five encoder LSTMs, two prediction LSTMs, a joint network over all pairs (Graves 2012)."""
    config = entry["config"]
    tape = Tape(recipe)
    batch, vocab = sizes.batch, config["vocab"]
    frames = sizes.seq or config.get("seq", 500)
    # LSTMs step through the longest utterance of a batch; pairs are made of what was spoken alone.
    spoken = max(2, round(frames / STRETCHED))
    words = max(1, spoken // WORD_FRAMES)
    tape.assume(f"utterances have {spoken} stacked frames, {frames} with padding, and {words} word pieces")
    x = tape.input("features", (frames, batch, 240), "fp32")
    x = tape.cast(x, tape.numbers.compute) if not tape.numbers.autocast else x
    rate = recipe.rate(0.32)
    width = config["hidden"]
    with tape.scope("encoder"):
        x = dropout(tape, rnn(tape, x, width, layers=2, name="before"), rate)
        x = tape.view(x, (frames // 2, batch, 2 * width))
        x = dropout(tape, rnn(tape, x, width, layers=3, name="after"), rate)
    with tape.scope("prediction"):
        ids = tape.input("labels", (words, batch), "int64")
        small = config["prediction"]
        y = embedding(tape, ids, vocab=vocab, width=small)
        y = dropout(tape, rnn(tape, y, small, layers=2), rate)
    with tape.scope("joint"):
        joint = config["joint"]
        left, right = linear(tape, x, joint, name="encoder"), linear(tape, y, joint, name="prediction")
        shape = (batch, spoken // 2, words, joint)
        pairs = pointwise(
            tape,
            "add",
            left,
            right,
            shape=shape,
            backward=lambda g, out: (sum_to(tape, g, left), sum_to(tape, g, right)),
        )
        pairs = dropout(tape, activation(tape, "relu", pairs), rate)
        logits = linear(tape, pairs, vocab, name="output")
    outputs = [logits]
    if recipe.trains and recipe.loss:
        outputs = [ctc_loss(tape, tape.view(logits, (spoken // 2 * words, batch, vocab)))]
    return tape.finish(
        outputs,
        name=name,
        batch_size=batch,
        tokens_per_sample=frames,
        samples_unit="utterances",
        source=entry["source"],
    )


def build_tacotron2(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """Text to mel frames, one decoder step at a time (Shen 2018; NVIDIA's examples)."""
    config = entry["config"]
    tape = Tape(recipe)
    batch = sizes.batch
    frames = sizes.seq or config.get("seq", 800)
    letters = max(1, frames // 8)
    tape.assume(f"every clip has {letters} letters and {frames} mel frames")
    with tape.scope("encoder"):
        ids = tape.input("text", (batch, letters), "int64")
        x = embedding(tape, ids, vocab=148, width=512)
        x = copy(tape, x, (batch, 512, letters), back=True)
        for index in range(3):
            x = conv_block(tape, x, 512, f"conv{index}", "relu")
        memory = rnn(tape, copy(tape, x, (letters, batch, 512), back=True), 256, directions=2, name="lstm")
        memory = copy(tape, memory, (batch, letters, 512), back=True)
        keys = linear(tape, memory, 128, bias=False, name="memory")
    with tape.scope("decoder"):
        mel = tape.input("mel", (frames, batch, 80), "fp32")
        prenet = tape.cast(mel, tape.numbers.compute) if not tape.numbers.autocast else mel
        for index in range(2):
            prenet = linear(tape, prenet, 256, bias=False, name=f"prenet{index}")
            prenet = dropout(tape, activation(tape, "relu", prenet), 0.5)
        state = tape.cast(tape.input("state", (batch, 1024), tape.numbers.weight), tape.numbers.weight)
        step_input = tape.part(prenet, (batch, 256))
        tape.register(step_input, (prenet,), lambda g: (tape.part(g, prenet.shape),))

        def step(value: Value) -> Value:
            return decoder_step(tape, value, step_input, keys, memory)

        last = tape.repeat(frames, state, step, shared=True)
        spoken = tape.new((frames * batch, 1536), last.dtype)
        tape.op(
            "aten.stack",
            "copy",
            (last,),
            (spoken,),
            {"function": "cat", "numel": spoken.numel},
            bytes_read=spoken.num_bytes,
        )
        tape.register(spoken, (last,), lambda g: (tape.part(g, last.shape),))
        out = linear(tape, spoken, 80, name="mel")
        gate = linear(tape, spoken, 1, name="gate")
    with tape.scope("postnet"):
        y = copy(tape, tape.view(out, (batch, frames, 80)), (batch, 80, frames), back=True)
        for index in range(5):
            y = conv_block(tape, y, 512 if index < 4 else 80, f"conv{index}", "tanh" if index < 4 else "")
    outputs = [out, gate, y]
    if recipe.trains and recipe.loss:
        first = add(tape, mean_loss(tape, out), mean_loss(tape, y))
        outputs = [add(tape, first, mean_loss(tape, gate, "binary_cross_entropy_with_logits"))]
    return tape.finish(
        outputs, name=name, batch_size=batch, tokens_per_sample=frames, samples_unit="clips", source=entry["source"]
    )


def conv_block(tape: Tape, x: Value, channels: int, name: str, function: str) -> Value:
    with tape.scope(name):
        x = batch_norm(tape, conv(tape, x, channels, 5, bias=True))
        x = activation(tape, function, x) if function else x
        return dropout(tape, x, tape.recipe.rate(0.5))


def lstm_cell(tape: Tape, x: Value, state: Value, hidden: int, name: str) -> Value:
    """One step: two products and one fused pointwise kernel."""
    with tape.scope(name):
        gates = add(tape, linear(tape, x, 4 * hidden, name="input"), linear(tape, state, 4 * hidden, name="hidden"))
        out = tape.new((x.shape[0], hidden), gates.dtype)
        attrs: dict[str, Attr] = {"function": "lstm_cell", "numel": gates.numel, "num_inputs": 3}
        tape.op("aten._thnn_fused_lstm_cell", "elementwise", (gates,), (out,), attrs, flop=3.0 * gates.numel)

        def backward(g: Value) -> Gradients:
            result = tape.gradient_like(gates)
            tape.op(
                "aten._thnn_fused_lstm_cell_backward",
                "elementwise",
                (g, gates),
                (result,),
                attrs,
                flop=4.0 * gates.numel,
            )
            return (result,)

        return tape.register(out, (gates,), backward)


def decoder_step(tape: Tape, state: Value, prenet: Value, keys: Value, memory: Value) -> Value:
    batch, letters, width = memory.shape
    weight_dtype = tape.numbers.weight
    context = tape.cast(tape.input("context", (batch, width), prenet.dtype), prenet.dtype)
    x = concat(tape, (prenet, context), (batch, 256 + width))
    attention_state = dropout(tape, lstm_cell(tape, x, state, 1024, "attention_cell"), tape.recipe.rate(0.1))
    with tape.scope("attention"):
        query = linear(tape, attention_state, 128, bias=False, name="query")
        seen = tape.cast(tape.input("weights", (batch, 2, letters), prenet.dtype), prenet.dtype)
        places = conv(tape, seen, 32, 31, name="location")
        places = linear(tape, copy(tape, places, (batch, letters, 32), back=True), 128, bias=False, name="places")
        mixed = add(tape, pointwise(
            tape, "add", places, query, backward=lambda g, out: (g, sum_to(tape, g, query))
        ), keys)  # fmt: skip
        energy = linear(tape, activation(tape, "tanh", mixed), 1, bias=False, name="energy")
        weights = softmax(tape, tape.view(energy, (batch, letters)))
        weights = tape.cast(weights, memory.dtype)
        context = matmul(tape, weights, memory, batch=batch, m=1, n=width, k=letters, layout="nn", shape=(batch, width))
    x = concat(tape, (attention_state, context), (batch, 1024 + width))
    out = dropout(tape, lstm_cell(tape, x, attention_state, 1024, "decoder_cell"), tape.recipe.rate(0.1))
    return tape.cast(out, weight_dtype)


def build_waveglow(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """Flow-based vocoder (Prenger 2018; NVIDIA's examples)."""
    config = entry["config"]
    tape = Tape(recipe)
    batch, width, group = sizes.batch, config["channels"], 8
    samples = sizes.seq or config.get("seq", 8000)
    length = samples // group
    mel = tape.input("mel", (batch, 80, max(1, samples // 256)), "fp32")
    mel = tape.cast(mel, tape.numbers.compute) if not tape.numbers.autocast else mel
    with tape.scope("upsample"):
        spread = conv(tape, mel, 80, 1024, stride=256, padding=0, bias=True, transposed=True)
        trimmed = tape.part(spread, (batch, 80, samples))
        tape.register(trimmed, (spread,), lambda g: (tape.part(g, spread.shape),))
        condition = tape.view(copy(tape, trimmed, back=True), (batch, 640, length))
    audio = tape.input("audio", (batch, group, length), "fp32")
    x = tape.cast(audio, tape.numbers.compute) if not tape.numbers.autocast else audio
    channels = group
    for flow in range(config["flows"]):
        if flow and flow % 4 == 0:
            channels -= 2
            x = take(tape, x, (batch, channels, length))
        with tape.scope(f"flow{flow}"):
            x = conv(tape, x, channels, 1, name="mix")
            half = channels // 2
            part = (batch, half, length)
            left, right = split(tape, x, (part, part))
            y = conv(tape, left, width, 1, bias=True, name="start")
            hints = conv(tape, condition, 2 * width * config["layers"], 1, bias=True, name="condition")
            total: Value | None = None
            for layer in range(config["layers"]):
                with tape.scope(f"layer{layer}"):
                    hint = tape.part(hints, (batch, 2 * width, length))
                    tape.register(hint, (hints,), lambda g, whole=hints: (tape.part(g, whole.shape),))  # type: ignore[misc]
                    inner = add(tape, conv(tape, y, 2 * width, 3, dilation=2**layer, bias=True, name="dilated"), hint)
                    wide = (batch, width, length)
                    a, b = split(tape, inner, (wide, wide))
                    gated = multiply(tape, activation(tape, "tanh", a), activation(tape, "sigmoid", b))
                    last = layer == config["layers"] - 1
                    out = conv(tape, gated, width if last else 2 * width, 1, bias=True, name="skip")
                    skip = out
                    if not last:
                        rest, skip = split(tape, out, (wide, wide))
                        y = add(tape, y, rest)
                    total = skip if total is None else add(tape, total, skip)
            end = conv(tape, total if total is not None else y, 2 * half, 1, bias=True, name="end")
            shift, log_scale = split(tape, end, (part, part))
            moved = add(tape, multiply(tape, right, activation(tape, "exp", log_scale)), shift)
            x = concat(tape, (left, moved), (batch, channels, length))
    outputs = [mean_loss(tape, x)] if recipe.trains and recipe.loss else [x]
    return tape.finish(
        outputs, name=name, batch_size=batch, tokens_per_sample=samples, samples_unit="clips", source=entry["source"]
    )


def build_lstm_lm(name: str, entry: Mapping[str, Any], recipe: Recipe, sizes: "Sizes") -> Graph:
    """A word-level LSTM language model (Zaremba 2014)."""
    config = entry["config"]
    tape = Tape(recipe)
    length = sizes.seq or config.get("seq", 35)
    rate = recipe.rate(config.get("dropout", 0.5))
    ids = tape.input("input_ids", (length, sizes.batch), "int64")
    x = dropout(tape, embedding(tape, ids, vocab=config["vocab"], width=config["hidden"]), rate)
    x = rnn(tape, x, config["hidden"], layers=config["n_layers"], name="lstm")
    with tape.scope("head"):
        logits = linear(tape, dropout(tape, x, rate), config["vocab"], name="decoder")
    outputs = [cross_entropy(tape, logits)] if recipe.trains and recipe.loss else [logits]
    return tape.finish(
        outputs,
        name=name,
        batch_size=sizes.batch,
        tokens_per_sample=length,
        samples_unit="sequences",
        source=entry["source"],
    )
