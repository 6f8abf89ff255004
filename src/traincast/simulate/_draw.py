"""The passes of pipeline stages, placed in time, to the spans of every stage."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from traincast.noun import noun
from traincast.simulate._passes import Clocks, Part, Spent, run_pass
from traincast.spec import Collective, Span

MAX_SPANS = 40_000
"""Beyond this many, each pass is drawn by its sorts of work."""
Update = Callable[[Mapping[str, Sequence[Part]], Clocks, Spent, list[Span]], None]


@noun
class Pattern:
    """The spans of one stage, each list counted from the start of its pass."""

    forward: tuple[Span, ...]
    backward: tuple[Span, ...]
    ending: tuple[Span, ...]
    """The last backward, the gradients it reduces and the update that follows."""


def draw_patterns(passes: Mapping[str, Sequence[Part]], *, update: Update) -> Pattern:
    """Run each pass of a stage once and write it down."""
    forward: list[Span] = []
    backward: list[Span] = []
    ending: list[Span] = []
    clocks, spent = Clocks(), Spent()
    run_pass(passes["forward"], clocks, spent, first=False, last=False, spans=forward)
    # The host is ahead or behind as the forward pass left it, and the network starts free.
    turn_s, again = clocks.device_s, replace(clocks)
    run_pass(passes["backward"], clocks, spent, first=False, last=False, spans=backward)
    run_pass(passes["backward"], again, spent, first=False, last=True, spans=ending)
    update(passes, again, spent, ending)
    return Pattern(
        forward=tuple(forward),
        backward=tuple(_shift(span, -turn_s, 0) for span in backward),
        ending=tuple(_shift(span, -turn_s, 0) for span in ending),
    )


def draw_pipeline(
    patterns: Sequence[Pattern],
    placed: Sequence[Sequence[tuple[str, float, float]]],
    *,
    hop: Collective | None,
    hop_s: float,
) -> list[Span]:
    """Every pass of every stage, and what crosses between the stages."""
    num_spans = sum(
        len(passes) // 2 * (len(pattern.forward) + len(pattern.backward))
        for pattern, passes in zip(patterns, placed, strict=True)
    )
    if num_spans > MAX_SPANS:
        names = {"forward": "forward", "backward": "backward", "ending": "last backward and update"}
        patterns = [
            Pattern(**{part: _merge(getattr(pattern, part), name) for part, name in names.items()})
            for pattern in patterns
        ]
    spans: list[Span] = []
    for stage, (pattern, passes) in enumerate(zip(patterns, placed, strict=True)):
        for number, (kind, start_s, _) in enumerate(passes):
            ends = number == len(passes) - 1
            piece = pattern.forward if kind == "F" else pattern.ending if ends else pattern.backward
            spans.extend(_shift(span, start_s, stage) for span in piece)
    spans = _queue(spans)
    return spans + (_draw_hops(placed, hop, hop_s) if hop is not None and hop_s > 0 else [])


def _shift(span: Span, by_s: float, rank: int) -> Span:
    return replace(span, start_s=span.start_s + by_s, end_s=span.end_s + by_s, rank=rank)


def _queue(spans: Sequence[Span]) -> list[Span]:
    """What one pass has not yet sent keeps the network busy when the next pass begins to send."""
    free_s: dict[tuple[int, str], float] = {}
    queued = []
    for span in spans:
        key = span.rank, span.stream
        late_s = max(0.0, free_s.get(key, 0.0) - span.start_s) if span.stream != "device" else 0.0
        queued.append(_shift(span, late_s, span.rank) if late_s else span)
        free_s[key] = queued[-1].end_s
    return queued


def _draw_hops(placed: Sequence[Sequence[tuple[str, float, float]]], hop: Collective, hop_s: float) -> list[Span]:
    """A forward pass hands its result to the next stage, a backward pass to the one before."""
    spans = []
    for stage, passes in enumerate(placed):
        free_s = {"F": 0.0, "B": 0.0}
        for kind, _, end_s in passes:
            other = stage + 1 if kind == "F" else stage - 1
            if 0 <= other < len(placed):
                sent_s = max(end_s, free_s[kind])
                free_s[kind] = sent_s + hop_s
                for rank, direction in ((stage, "out"), (other, "in")):
                    spans.append(
                        Span(
                            name=f"{hop.name} {direction}",
                            start_s=sent_s,
                            end_s=sent_s + hop_s,
                            stream=f"pipeline {direction} {kind}",
                            category="communication",
                            rank=rank,
                            collective=hop,
                            direction=direction,
                        )
                    )
    return spans


def _merge(spans: Sequence[Span], name: str) -> tuple[Span, ...]:
    """Sorts of work one after the other, each as long as its tasks, and one span for each sort of collective."""
    groups: dict[tuple[str, ...], list[Span]] = {}
    for span in spans:
        task = span.collective
        key = ("", span.category) if task is None else (task.kind, task.axis, str(task.num_ranks))
        groups.setdefault(key, []).append(span)
    merged = []
    free_s = min((span.start_s for span in spans), default=0.0)
    for sort, members in groups.items():
        first, task = members[0], members[0].collective
        start_s = free_s if task is None else min(span.start_s for span in members)
        end_s = start_s + sum(span.end_s - span.start_s for span in members)
        free_s = end_s if task is None else free_s
        merged.append(
            replace(
                first,
                name=name if task is None else first.name,
                start_s=start_s,
                end_s=end_s,
                stream=first.stream if task is None else " ".join(("network", *sort)),
                layer="",
                num_bytes=sum(span.num_bytes for span in members),
                collective=task
                and replace(task, num_bytes=sum(span.collective.num_bytes for span in members if span.collective)),
            )
        )
    return tuple(merged)
