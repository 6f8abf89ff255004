"""What runs of other publishers teach about a publisher that is left out whole: python -m research.papers.carried.

Runs of ../shared/cases with their forecasts (`research.studies.own_runs`), at most 150 of a publisher. Each publisher in turn is
asked by corrections that the others taught. A publisher's own level is a random effect in every method, so that what is shared
is told apart from what one publisher misses (partial pooling); publishers count alike, errors beyond 40% count as 40%. All
corrections are shrunk to none.

| method | what the log error is made of |
|---|---|
| parts of the step | computation, memory, exposed communication, host, bubble, each kind of operators |
| parts, sizes, behaviours | the same and tokens, devices, nodes, splits, kernels, compiled, recompute, precision, device |
| near runs | a Gaussian process over all of these: it fades with the distance from every run of the others |
| the process of `learn` | devices, families of networks, kinds of operators and the network, stacks and names left out |

Each has three strengths; the table shows the one that is best on what it asks, which favours it. *Saw every publisher*: the same
correction with the asked one among the teachers, its level left out: what the form could reach if publishers agreed.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from research.output import say
from research.studies.own_runs import Known, read_settings
from traincast import catalog
from traincast.spec import MIX_KINDS

Array = NDArray[np.float64]
MOST_RUNS, LEAST_RUNS = 150, 10
"""Of one publisher: more say the same again, fewer say little."""
LEVEL, NOISE, MOST_MISSED = 0.1, 0.15, 0.4
"""Of publishers, of one run, and what an error counts as at most."""
STRENGTHS = (0.05, 0.1, 0.2)
REACH = 0.5
WITHOUT_TOKENS = ("conv", "rnn", "pool", "embedding")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """All runs as columns."""

    publisher: NDArray[np.str_]
    missed: Array
    """Logarithm of measured over forecast time."""
    parts: Array
    facts: Array
    relation: Array
    """How alike two runs are to the process of `learn`."""


def describe(runs: Mapping[str, Sequence[Known]]) -> Asked:
    every = [(name, one) for name, own in runs.items() for one in own]
    labels = [one.run.labels for _, one in every]
    parts = np.array([[*one.run.shares, *(one.run.labels.mix or (0.0,) * len(MIX_KINDS))] for _, one in every])
    facts = np.array([_facts(one) for _, one in every])
    chips = np.array([catalog.device(one.device).architecture for one in labels])
    families, mix = np.array([one.family for one in labels]), parts[:, -len(MIX_KINDS) :]
    sent = parts[:, 2]
    alike = (chips[:, None] == chips) * (0.5 + mix @ mix.T) + 0.5 * (families[:, None] == families)
    relation = np.outer(1 - sent, 1 - sent) * alike + np.outer(sent, sent)
    return Asked(
        publisher=np.array([name for name, _ in every]),
        missed=np.array([math.log(one.run.measured_s / one.run.forecast_s) for _, one in every]),
        parts=_standard(parts), facts=_standard(np.hstack([parts, facts])), relation=relation,
    )  # fmt: skip


def _facts(one: Known) -> list[float]:
    labels, device = one.run.labels, catalog.device(one.run.labels.device)
    peak = max([*device.matrix_flop_per_s.values(), *device.vector_flop_per_s.values()])
    flop, moved, parameters, samples = one.sizes[:4]
    return [
        *(math.log(size) for size in (
            max(labels.pass_tokens, 1), labels.num_devices, labels.num_nodes, labels.tensor, labels.pipeline,
            labels.micro_batches, labels.num_layers, one.run.forecast_s, peak, device.memory_bytes_per_s,
        )),
        flop, flop - moved, parameters, samples, float(labels.compiled), float(labels.recompute != "none"),
        float(labels.varying_inputs), float("fp8" in labels.precision), float("16" in labels.precision),
    ]  # fmt: skip


def _standard(columns: Array) -> Array:
    return np.asarray((columns - columns.mean(axis=0)) / np.maximum(columns.std(axis=0), 1e-6))


Kernel = Callable[[Asked], Array]


def _linear(columns: Array) -> Array:
    return np.asarray(columns @ columns.T / columns.shape[1])


def _near(columns: Array) -> Array:
    squares = (columns**2).sum(axis=1)
    apart = (squares[:, None] + squares - 2 * columns @ columns.T) / columns.shape[1]
    return np.asarray(np.exp(-0.5 * np.maximum(apart, 0.0) / REACH**2))


METHODS: Mapping[str, Kernel] = {
    "parts of the step": lambda runs: _linear(runs.parts),
    "parts, sizes, behaviours": lambda runs: _linear(runs.facts),
    "near runs": lambda runs: _near(runs.facts),
    "the process of `learn`": lambda runs: runs.relation,
}


def correct(runs: Asked, kernel: Array, strength: float, *, left_out: bool) -> Array:
    """What each publisher's runs are corrected by, as logarithms."""
    answer = np.zeros(len(runs.missed))
    counts = {name: int((runs.publisher == name).sum()) for name in set(runs.publisher.tolist())}
    alike = np.array([len(runs.missed) / len(counts) / counts[name] for name in runs.publisher.tolist()])
    target = np.clip(runs.missed, -MOST_MISSED, MOST_MISSED)
    for name in counts:
        asked = runs.publisher == name
        known = ~asked if left_out else np.ones_like(asked)
        own = LEVEL**2 * (runs.publisher[known][:, None] == runs.publisher[known])
        between = strength**2 * kernel[np.ix_(known, known)] + own
        weights = np.linalg.solve(between + np.diag(NOISE**2 / np.minimum(alike[known], 4.0)), target[known])
        answer[asked] = strength**2 * kernel[np.ix_(asked, known)] @ weights
    return answer


def errors_of(runs: Asked, corrections: Array) -> dict[str, float]:
    """Mean relative error of each publisher."""
    missed = np.abs(np.expm1(corrections - runs.missed))
    return {name: float(missed[runs.publisher == name].mean()) for name in sorted(set(runs.publisher.tolist()))}


def read_publishers() -> dict[str, list[Known]]:
    found: dict[str, list[Known]] = defaultdict(list)
    for (publisher, _), runs in sorted(read_settings().items()):
        found[publisher] += runs
    return {
        name: [runs[place] for place in sorted({round(x) for x in np.linspace(0, len(runs) - 1, MOST_RUNS)})]
        for name, runs in found.items()
    }


def is_on_tokens(one: Known) -> bool:
    mix = dict(zip(MIX_KINDS, one.run.labels.mix, strict=False))
    return mix.get("matmul", 0.0) > 0 and sum(mix.get(name, 0.0) for name in WITHOUT_TOKENS) < 0.05


def tabulate() -> str:
    """Markdown: language models, then all cases."""
    every = read_publishers()
    tokens = {name: [one for one in runs if is_on_tokens(one)] for name, runs in every.items()}
    lines = []
    for title, chosen in (("language models", tokens), ("all cases", every)):
        runs = describe({name: own for name, own in chosen.items() if len(own) >= LEAST_RUNS})
        names = sorted(set(runs.publisher.tolist()))
        lines += [
            f"| {title}, publisher left out | {' | '.join(names)} | mean | x lower | worst | saw every publisher |",
            f"|---|{'--:|' * (len(names) + 4)}",
        ]
        plain = errors_of(runs, np.zeros(len(runs.missed)))
        lines.append(_line("the forecast as it is", plain, plain, None))
        for name, make in METHODS.items():
            kernel = make(runs)
            tried = [errors_of(runs, correct(runs, kernel, one, left_out=True)) for one in STRENGTHS]
            best = min(range(len(tried)), key=lambda place: sum(tried[place].values()))
            seen = errors_of(runs, correct(runs, kernel, STRENGTHS[best], left_out=False))
            lines.append(_line(name, tried[best], plain, seen))
        lines.append("")
    return "\n".join(lines)


def _line(name: str, errors: Mapping[str, float], plain: Mapping[str, float], seen: Mapping[str, float] | None) -> str:
    mean, before = (float(np.mean(list(each.values()))) for each in (errors, plain))
    worst = max(errors[one] / plain[one] for one in errors)
    cells = [f"{100 * value:.1f}" for value in (*errors.values(), mean)]
    told = f"{100 * float(np.mean(list(seen.values()))):.1f}" if seen else "-"
    return f"| {name} | {' | '.join(cells)} | {before / mean:.2f} | x{worst:.2f} | {told} |"


def main() -> None:
    say(tabulate())


if __name__ == "__main__":
    main()
