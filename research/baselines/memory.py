"""The nominal memory formula: weights, gradients, Adam under ZeRO, activations and logits, plus one fixed gigabyte."""

import math

from traincast.accuracy import Case

FAILS_ABOVE_BYTES = 75e9
"""Of an 80 GB device, as the shared baselines set it."""


def nominal_memory_bytes(case: Case) -> float | None:
    """Peak of one device of a Llama-like job; the larger of the first and the last pipeline stage."""
    shape = (case.n_layers, case.hidden, case.ffn, case.vocab, case.seq_len, case.micro_batch)
    if None in shape:
        return None
    num_layers, hidden, ffn, vocab, seq, batch = (float(value or 0) for value in shape)
    tensor, pipeline, data = (degree or 1 for degree in (case.tp, case.pp, case.dp))
    layers = math.ceil(num_layers / pipeline)
    in_flight = min(pipeline, case.grad_accum or 1)
    tables = 2 if pipeline == 1 and not case.tied_embeddings else 1
    weights = (layers * (3 * hidden * ffn + 4 * hidden**2) + vocab * hidden * tables) / tensor
    states = weights * (8 + (12 / data if (case.zero or 0) >= 1 else 12))
    tokens = seq * batch
    activations = tokens * layers * in_flight * (20 * (hidden + ffn / 2) / tensor + hidden)
    first, last = states + activations, states + activations / in_flight + 8 * tokens * vocab / tensor
    return max(first, last) + 1e9
