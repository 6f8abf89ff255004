"""Loops of TensorFlow 1 (Enter, Merge, Switch, NextIteration, Exit), found in a list of nodes and put in one node each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from traincast.capture._tensorflow.nodes import Value, source_of
from traincast.errors import CaptureFailed

FRAME = "TraincastFrame"
"""The operation that stands for a whole loop; its outputs are the values that leave it."""

_EFFECTS = ("StackPush", "StackPushV2", "TensorArrayWriteV3", "TensorArrayScatterV3")


@dataclass(slots=True)
class Frame:
    """One loop: what it carries from round to round, what it only reads, and where its condition and results are."""

    merges: list[str] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    """What the next round starts with, as inputs name it."""
    constants: list[str] = field(default_factory=list)
    condition: str = ""
    effects: list[str] = field(default_factory=list)
    """Nodes that keep something outside the loop, so that they run although nothing reads them."""

    def given(self, values: list[Value]) -> dict[str, list[Value]]:
        """The values with which a round starts, by the nodes that hand them to the body."""
        found = {}
        for merge, switch, value in zip(self.merges, self.switches, values, strict=False):
            found[merge] = [value, value]
            found[switch] = [value, value]
        found |= {name: [value] for name, value in zip(self.constants, values[len(self.merges) :], strict=True)}
        return found


def find_frames(nodes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Frame]]:
    """The nodes with every loop in one node, and the loops by the name of that node."""
    entered = {name: node.attr["frame_name"].s.decode() for name, node in nodes.items() if _is(node, "Enter")}
    if not entered:
        return dict(nodes), {}
    frames: dict[str, Frame] = {frame: Frame() for frame in entered.values()}
    starts: dict[str, list[str]] = {frame: [] for frame in frames}
    merged = _read_merges(nodes, entered, frames, starts)
    exits = _read_switches(nodes, frames, merged)
    carried = {source_of(text)[0] for texts in starts.values() for text in texts}
    for name, frame in entered.items():
        if name not in carried:
            frames[frame].constants.append(name)
    kept = dict(nodes)
    for frame_name, frame in frames.items():
        kept[frame_name] = _made(
            nodes, frame_name, FRAME,
            [nodes[source_of(text)[0]].input[0] for text in starts[frame_name]]
            + [nodes[name].input[0] for name in frame.constants],
        )  # fmt: skip
        _find_effects(nodes, frame)
    for name, (frame_name, place) in exits.items():
        kept[name] = _made(nodes, name, "Identity", [f"{frame_name}:{place}"])
    return kept, frames


def _is(node: Any, op: str) -> bool:
    return bool(node.op in (op, f"Ref{op}"))


def _read_merges(
    nodes: Mapping[str, Any], entered: Mapping[str, str], frames: Mapping[str, Frame], starts: Mapping[str, list[str]]
) -> dict[str, tuple[str, int]]:
    """Every Merge of an Enter and a NextIteration carries one value: its loop, and its place in it."""
    merged: dict[str, tuple[str, int]] = {}
    for name, node in nodes.items():
        if not _is(node, "Merge"):
            continue
        sources = [text for text in node.input if not text.startswith("^")]
        begin = next((text for text in sources if source_of(text)[0] in entered), None)
        back = next(
            (t for t in sources if source_of(t)[0] in nodes and _is(nodes[source_of(t)[0]], "NextIteration")), None
        )
        if begin is None or back is None:
            continue
        frame_name = entered[source_of(begin)[0]]
        frame = frames[frame_name]
        merged[name] = (frame_name, len(frame.merges))
        frame.merges.append(name)
        frame.switches.append("")
        frame.results.append(nodes[source_of(back)[0]].input[0])
        starts[frame_name].append(begin)
    return merged


def _read_switches(
    nodes: Mapping[str, Any], frames: Mapping[str, Frame], merged: Mapping[str, tuple[str, int]]
) -> dict[str, tuple[str, int]]:
    """Switches lead into the body or out of the loop; returns the nodes outside that take a value."""
    switched: dict[str, tuple[str, int]] = {}
    for name, node in nodes.items():
        if _is(node, "Switch") and source_of(node.input[0])[0] in merged:
            frame_name, place = merged[source_of(node.input[0])[0]]
            frames[frame_name].switches[place] = name
            frames[frame_name].condition = nodes[source_of(node.input[1])[0]].input[0]
            switched[name] = (frame_name, place)
    for frame_name, frame in frames.items():
        if not frame.condition:
            raise CaptureFailed(f"the loop {frame_name!r} of the TensorFlow graph has no condition")
    return {
        name: switched[source_of(node.input[0])[0]]
        for name, node in nodes.items()
        if _is(node, "Exit") and source_of(node.input[0])[0] in switched
    }


def _find_effects(nodes: Mapping[str, Any], frame: Frame) -> None:
    """Effects whose inputs come out of this loop's own switches and constants."""
    own = {*frame.switches, *frame.merges, *frame.constants}
    for name, node in nodes.items():
        if node.op in _EFFECTS and any(source_of(text)[0] in own for text in node.input if not text.startswith("^")):
            frame.effects.append(name)


def _made(nodes: Mapping[str, Any], name: str, op: str, inputs: list[str]) -> Any:
    node = type(next(iter(nodes.values())))()
    node.name, node.op = name, op
    node.input.extend(inputs)
    return node
