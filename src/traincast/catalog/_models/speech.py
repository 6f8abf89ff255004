"""Speech and recurrent models: DeepSpeech 2, RNN-T, Tacotron 2, WaveGlow, LSTM language models."""

from collections.abc import Mapping
from typing import Any

from traincast.catalog._models.layers import Net
from traincast.catalog._models.recipe import Sizes
from traincast.catalog._models.tape import Gradients, Value
from traincast.catalog._models.vision import half_input
from traincast.spec import Attr, Graph


def build_deepspeech2(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """Two convolutions, bidirectional recurrent layers with batch norm between, CTC (Amodei 2015; deepspeech.pytorch)."""
    batch, hidden, classes = sizes.batch, config["hidden"], sizes.num_classes or config.get("num_classes", 29)
    frames = sizes.seq or config.get("seq", 330)
    tape.assume(f"every utterance has {frames} frames of 10 ms (the mean length of the data set)")
    x = half_input(tape, tape.input("spectrogram", (batch, 1, 161, frames), "fp32"))
    for number, (kernel_size, stride, padding) in enumerate((((41, 11), (2, 2), (20, 5)), ((21, 11), (2, 1), (10, 5)))):
        with tape.scope(f"conv{number}"):
            x = tape.conv(x, 32, kernel_size, stride=stride, padding=padding, bias=True)
            x = tape.activation("relu6", tape.batch_norm(x), inplace=tape.recipe.inplace)
    steps = x.shape[3]
    x = tape.copy(x, (steps, batch, x.shape[1] * x.shape[2]), back=True)
    for number in range(config["n_layers"]):
        with tape.scope(f"rnn{number}"):
            if number:
                x = sequence_norm(tape, x)
            both = tape.rnn(x, hidden, directions=2, cell=config.get("cell", "gru"), name="cell", bias=False)
            x = sum_directions(tape, both, hidden)
    with tape.scope("head"):
        logits = tape.linear(sequence_norm(tape, x), classes, bias=False, name="fc")
    return tape.close([logits], lambda: ctc_loss(tape, logits), tokens_per_sample=frames, samples_unit="utterances")


def sequence_norm(tape: Net, x: Value) -> Value:
    """Batch norm over all steps and samples at once."""
    steps, batch, width = x.shape
    return tape.view(tape.batch_norm(tape.view(x, (steps * batch, width)), channels=width), (steps, batch, width))


def sum_directions(tape: Net, both: Value, hidden: int) -> Value:
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


def ctc_loss(tape: Net, logits: Value) -> Value:
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


def build_rnnt(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """RNN transducer of MLPerf: five encoder LSTMs, two prediction LSTMs, a joint network over all pairs (Graves 2012)."""
    batch, vocab = sizes.batch, config["vocab"]
    frames = sizes.seq or config.get("seq", 500)
    # LSTMs step through the longest utterance of a batch; pairs are made of what was spoken alone.
    spoken = max(2, round(frames / STRETCHED))
    words = max(1, spoken // WORD_FRAMES)
    tape.assume(f"utterances have {spoken} stacked frames, {frames} with padding, and {words} word pieces")
    x = tape.input("features", (frames, batch, 240), "fp32")
    x = tape.cast(x, tape.numbers.compute) if not tape.numbers.autocast else x
    rate = tape.recipe.rate(0.32)
    width = config["hidden"]
    with tape.scope("encoder"):
        x = tape.dropout(tape.rnn(x, width, layers=2, name="before"), rate)
        x = tape.view(x, (frames // 2, batch, 2 * width))
        x = tape.dropout(tape.rnn(x, width, layers=3, name="after"), rate)
    with tape.scope("prediction"):
        ids = tape.input("labels", (words, batch), "int64")
        small = config["prediction"]
        y = tape.embedding(ids, vocab=vocab, width=small)
        y = tape.dropout(tape.rnn(y, small, layers=2), rate)
    with tape.scope("joint"):
        joint = config["joint"]
        left, right = tape.linear(x, joint, name="encoder"), tape.linear(y, joint, name="prediction")
        shape = (batch, spoken // 2, words, joint)
        pairs = tape.pointwise(
            "add", left, right, shape=shape, backward=lambda g, out: (tape.sum_to(g, left), tape.sum_to(g, right)),
        )  # fmt: skip
        pairs = tape.dropout(tape.activation("relu", pairs), rate)
        logits = tape.linear(pairs, vocab, name="output")
    outputs = [logits]
    if tape.recipe.has_loss:
        outputs = [ctc_loss(tape, tape.view(logits, (spoken // 2 * words, batch, vocab)))]
    return tape.close(outputs, tokens_per_sample=frames, samples_unit="utterances")


def build_lstm_lm(tape: Net, config: Mapping[str, Any], sizes: Sizes) -> Graph:
    """A word-level LSTM language model (Zaremba 2014)."""
    length = sizes.seq or config.get("seq", 35)
    rate = tape.recipe.rate(config.get("dropout", 0.5))
    ids = tape.input("input_ids", (length, sizes.batch), "int64")
    x = tape.dropout(tape.embedding(ids, vocab=config["vocab"], width=config["hidden"]), rate)
    x = tape.rnn(x, config["hidden"], layers=config["n_layers"], name="lstm")
    with tape.scope("head"):
        logits = tape.linear(tape.dropout(x, rate), config["vocab"], name="decoder")
    return tape.close([logits], lambda: tape.cross_entropy(logits), tokens_per_sample=length, samples_unit="sequences")
