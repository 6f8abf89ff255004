"""A package outside of ours adds one of each family of plug-ins, laid down as pip would, and commands take it by name."""

import json
import sys
from pathlib import Path

import pytest

from traincast.__main__ import main
from traincast.registry import GROUPS

MODULE = """
from traincast.configs import ConfigFormat
from traincast.cost import Pricing
from traincast.schedule import ByScore
from traincast.spec import Stack

stack = Stack(name="house-stack", title="Our trainer", log_sigma=0.2)


class TwiceAsLong:
    def __init__(self, stack):
        self.stack = stack

    def estimate(self, stage, cluster):
        return tuple(one.scaled(2.0) for one in Pricing(stack=self.stack, interaction=None).estimate(stage, cluster))


policy = ByScore("house-policy", lambda jobs, estimate_s: jobs.num_gpus * estimate_s, fit="easy")


def emitter(recipe):
    return f"house run {recipe.num_nodes} nodes"


def rule(call):
    return 5.0


def broken(stack):
    return "no model"


def read(draft):
    draft.take("source", "network")
    draft.take("workload.batch", "samples_per_gpu", least=1)
    draft.translate("workload.precision", {"half": "bf16"}, "numbers")


config = ConfigFormat(
    name="house-config", title="Our trainer", syntax="yaml", telling=("network", "samples_per_gpu"), read=read, write=None
)
"""
POINTS = """
[traincast.stacks]
house-stack = house_parts:stack
[traincast.cost_models]
twice-as-long = house_parts:TwiceAsLong
broken = house_parts:broken
[traincast.policies]
house-policy = house_parts:policy
[traincast.emitters]
house-emitter = house_parts:emitter
[traincast.rules]
house_parts.twist = house_parts:rule
[traincast.configs]
house-config = house_parts:config
"""
ASKED = ["gpt2", "--gpus", "1xa100-80g", "--batch", "4", "--precision", "bf16", "--zero", "0"]


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "house_parts.py").write_text(MODULE)
    info = tmp_path / "house_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: house-parts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "house_parts", raising=False)


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main([*words, "--json"]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def test_every_family_has_one_in_this_test() -> None:
    assert {line[1:-1] for line in POINTS.split() if line.startswith("[")} == set(GROUPS.values())


def test_a_configuration_format_from_outside_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text("network: gpt2\nsamples_per_gpu: 4\nnumbers: half\n")
    said = ask(capsys, "forecast", "--config", f"house-config:{file}", "--gpus", "1xa100-80g", "--zero", "0")
    plain = ask(capsys, "forecast", *ASKED)
    assert said["step"] == plain["step"]


def test_a_stack_from_outside_answers_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(capsys, "forecast", *ASKED, "--stack", "house-stack")
    assert answer["settings"]["stack"] == "house-stack"  # type: ignore[index]


def test_a_cost_model_from_outside_prices_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    named = ("--cost-model", "twice-as-long")
    plain, slow = (ask(capsys, "forecast", *ASKED, *words) for words in ((), named))
    assert slow["step"]["seconds"] > 1.5 * plain["step"]["seconds"]  # type: ignore[index]
    assert any("twice-as-long" in note for note in slow["notes"])  # type: ignore[attr-defined]
    advice = ask(capsys, "advise", *ASKED, *named)
    assert advice["forecast"]["step"]["seconds"] == slow["step"]["seconds"]  # type: ignore[index]
    assert main(["forecast", *ASKED, "--cost-model", "twice-as-lang"]) == 2
    assert "did you mean 'twice-as-long'" in capsys.readouterr().err
    assert main(["forecast", *ASKED, "--cost-model", "broken"]) == 2
    assert "gave a str, which has no method estimate" in capsys.readouterr().err


def test_a_policy_from_outside_is_named_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    rows = ask(capsys, "schedule", "synthetic:50", "-c", "2x8", "-p", "house-policy")["policies"]
    assert [row["policy"] for row in rows] == ["house-policy"]  # type: ignore[attr-defined]


def test_an_emitter_from_outside_writes_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forecast", *ASKED, "--emit", "house-emitter"]) == 0
    assert "house run 1 nodes" in capsys.readouterr().out


def test_a_rule_from_outside_says_what_an_operation_computes() -> None:
    torch = pytest.importorskip("torch")
    from traincast.capture import capture
    from traincast.capture._rules import installed_rules

    library = torch.library.Library("house_parts", "DEF")
    library.define("twist(Tensor x) -> Tensor")
    library.impl("twist", lambda x: x.new_empty(x.shape), "CompositeExplicitAutograd")

    class Twisted(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: object) -> object:
            return torch.ops.house_parts.twist(x)

    installed_rules.cache_clear()
    try:
        graph = capture(Twisted(), torch.zeros(3, 4), mode="inference")
    finally:
        installed_rules.cache_clear()
    assert [(op.kind, op.flop) for op in graph.ops] == [("other", 5.0)]
    assert not graph.unknown_ops()
