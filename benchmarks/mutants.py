"""Makes realistic mistakes in the rooms that predict, one at a time, and sees whether a test notices.

python benchmarks/mutants.py [--only NAME ...] [--rooms cost lower] [--minutes 5] [--write PAGE]

A mutant is one text of the code and what a tired hand could have written instead. The text is looked for in all predicting
rooms and must stand there once, so that a mutant survives a move of its code, and a mutant that no longer applies is an error.
The tests of the room run; the first failure kills the mutant, if that test passes without it. Verdicts are kept in a record, and
a later run goes on with what is not killed yet.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 900

TESTS = {
    "lower": ("tests/lower",),
    "cost": ("tests/cost",),
    "simulate": (
        *(
            f"tests/simulate/test_{name}.py"
            for name in ("memory", "order", "passes", "hide", "reserve", "allocator", "waiting")
        ),
    ),
    "resources": (*(f"tests/resources/test_{name}.py" for name in ("profile", "signal", "correction")),),
    "embed": ("tests/embed/test_reuse.py",),
    "forecast": (
        *(f"tests/forecast/test_{name}.py" for name in ("forecast", "bounds", "device_memory", "certainty", "place")),
    ),
    "learn": ("tests/learn/test_calibrate.py", "tests/learn/test_select.py"),
    "plan": ("tests/plan/test_offers.py", "tests/plan/test_capacity.py", "tests/plan/test_search.py"),
    "schedule": (
        *(f"tests/schedule/test_{name}.py" for name in ("study", "properties", "brute_force", "knowledge", "policies")),
    ),
    "accuracy": ("tests/accuracy/test_scores.py", "tests/accuracy/test_cases.py"),
    "units": ("tests/test_units.py", "tests/report/test_words.py"),
}
"""Which tests should notice a mistake in a room: its own, and before them its test_bites.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str
    room: str
    old: str
    new: str


def _of(room: str, *changes: tuple[str, str, str]) -> tuple[Mutant, ...]:
    return tuple(Mutant(name=name, room=room, old=old, new=new) for name, old, new in changes)


MUTANTS = (
    *_of(
        "forecast",
        ("interval halved", "factor = math.exp(NORMAL_90 * tally.log_sigma(software))",
         "factor = math.exp(NORMAL_90 * tally.log_sigma(software) / 2)"),
        ("checkpoints without optimizer state",
         'saved = job.graph.role_bytes("parameter") + job.graph.role_bytes("optimizer_state")',
         'saved = job.graph.role_bytes("parameter")'),
        ("restart loss doubled", "compile_s + interval_s / 2)", "compile_s + interval_s)"),
        ("failures of one device", "failures = running_s * cluster.num_devices / job.device_mtbf_s",
         "failures = running_s / job.device_mtbf_s"),
        ("energy per node instead of per device", "joules += group.num_devices * group.device.power_watts",
         "joules += group.num_nodes * group.device.power_watts"),
        ("waiting devices draw full power", "(working_s + IDLE_POWER * waiting_s)\n    return joules",
         "(working_s + waiting_s)\n    return joules"),
        ("evaluation as dear as training", "* step.seconds / 3", "* step.seconds"),
        ("micro-batches not counted", "global_batch = program.batch_size * plan.micro_batches * plan.data",
         "global_batch = program.batch_size * plan.data"),
        ("a loader for every device", "global_batch / (min(rates.values()) * cluster.num_nodes)",
         "global_batch / (min(rates.values()) * cluster.num_devices)"),
        ("price of a minute", "value=rate * total.seconds / HOUR_S", "value=rate * total.seconds / HOUR_S * 60"),
        ("errors of all kinds go together", "sum((part / whole) ** 2 for part in self.weighted.values() if whole)",
         "(sum(self.weighted.values()) / whole) ** 2"),
        ("utilization of one device", "flop / (step.seconds * peak * cluster.num_devices)",
         "flop / (step.seconds * peak)"),
        ("the largest device decides what fits",
         "return min(group.device.memory_bytes for group in cluster.groups)",
         "return max(group.device.memory_bytes for group in cluster.groups)"),
        ("buffers of axes forgotten", "total += channels * habits.communicators * habits.channel_bytes", "total += 0.0"),
        ("bounds that forget the context", "num_parts = plan.tensor * plan.context", "num_parts = plan.tensor"),
        ("the emptiest stage decides what fits", "worst = max(profiles, key=lambda profile: profile.needed_bytes)",
         "worst = min(profiles, key=lambda profile: profile.needed_bytes)"),
    ),
    *_of(
        "lower",
        ("gradients not reduced over context ranks",
         "num_ranks = plan.data * plan.context\n    if num_ranks == 1:\n        return stage\n    own_rows",
         "num_ranks = plan.data\n    if num_ranks == 1:\n        return stage\n    own_rows"),
        ("gradients never hidden", "overlapped=plan.overlap,\n        bucket_bytes", "overlapped=False,\n        bucket_bytes"),
        ("weights not gathered after a sharded step",
         "if not _gathers_ahead(plan) and gathered:", "if _gathers_ahead(plan) and gathered:"),
        ("the whole update on every replica", 'yield scale_op(task, 1 / num_ranks, attrs=("numel",))', "yield task"),
        ("gradients kept whole under ZeRO 2",
         'sharded = ("optimizer_state",) if plan.zero == 1 else ("optimizer_state", "gradient")',
         'sharded = ("optimizer_state",)'),
        ("full shards gathered for one pass", 'phase="backward" if phases[index] == "recompute" else phases[index]',
         'phase="forward"'),
        ("products split without their flop",
         "flop=None if op.flop is None else op.flop / self.ranks,\n            bytes_read=size * batch * (m * k2 + k2 * n2)",
         "flop=op.flop,\n            bytes_read=size * batch * (m * k2 + k2 * n2)"),
        ("context keeps its activations", "replace(tensor, shape=(max(1, tensor.numel // ranks),))\n        if tensor.role",
         "replace(tensor, shape=(max(1, tensor.numel),))\n        if tensor.role"),
        ("keys and values half sent", 'width = 2 * int(op.attrs["batch"]) * int(op.attrs["kv_heads"])',
         'width = int(op.attrs["batch"]) * int(op.attrs["kv_heads"])'),
        ("experts not spread", "return replace(tensor, shape=(max(1, tensor.numel // ranks),))", "return tensor"),
        ("optimizer state of every expert", "shape=(max(1, round(tensor.numel * share)),)", "shape=(max(1, tensor.numel),)"),
        ("stages cut by their first layers", "spent >= whole * len(starts) / num_stages and place > starts[-1]",
         "spent >= whole * len(starts) / num_stages / 2 and place > starts[-1]"),
        ("servers reached by one worker", "num_ranks=2 if plan.asynchronous else max(2, plan.data),", "num_ranks=2,"),
        ("offloaded gradients copied whole", "held / shards if whole_gradients else held", "held"),
    ),
    *_of(
        "cost",
        ("a ring at the fastest of unequal links",
         "return min(cluster.groups, key=lambda group: (group.inter if crosses else group.intra).bytes_per_s)",
         "return max(cluster.groups, key=lambda group: (group.inter if crosses else group.intra).bytes_per_s)"),
        ("unequal links shared as if equal", "return min(share_links(flows, dict(enumerate(rates))))", "return max(rates)"),
        ("an all-to-all factor lost", "sent = (level.fan - 1) * level.inside / route.num_ranks * num_bytes",
         "sent = num_bytes"),
        ("an all-reduce goes round once", 'rounds = 2 if kind == "all_reduce" else 1\n    return Work(',
         "rounds = 1\n    return Work("),
        ("a ring without its last part", "sent = rounds * (parts - 1) / parts * num_bytes / level.inside",
         "sent = rounds * num_bytes / level.inside"),
        ("latency of one hop", "return (1 - 1 / route.num_ranks) * walked_s", "return walked_s / route.num_ranks"),
        ("the fastest level counts", "slowest_s = max(seconds + c.pipeline * math.sqrt(seconds * hop_s) for",
         "slowest_s = min(seconds + c.pipeline * math.sqrt(seconds * hop_s) for"),
        ("half the interval of a collective", "factor = math.exp(NORMAL_90 * math.hypot(sigma * (1 - latency)",
         "factor = math.exp(0.8 * math.hypot(sigma * (1 - latency)"),
        ("a node's network for each device", "rate = link.bytes_per_s / host\n", "rate = link.bytes_per_s\n"),
        ("servers shared by nobody", "shared = num_bytes * max(1.0, route.num_ranks / max(1, route.num_servers))",
         "shared = num_bytes"),
        ("a bucket's price for each gradient",
         "return self.seconds(task.kind, task.bucket_bytes, route) * task.num_bytes / task.bucket_bytes",
         "return self.seconds(task.kind, task.bucket_bytes, route)"),
        ("host time of calls forgotten", "return op.num_calls * call_s + op.num_kernels * stack.launch_s",
         "return op.num_kernels * stack.launch_s"),
        ("a stack's factor squared", "seconds=estimate.seconds * factor,\n", "seconds=estimate.seconds * factor * factor,\n"),
        ("host memory for every device", "if year >= since) / group.devices_per_node", "if year >= since)"),
        ("calibrated intervals halved", "factor = math.exp(NORMAL_90 * log_spread)\n    return Estimate(seconds=seconds, low_s",
         "factor = math.exp(NORMAL_90 * log_spread / 2)\n    return Estimate(seconds=seconds, low_s"),
        ("operator intervals halved", "factors = np.exp(NORMAL_90 * costs.log_sigma)",
         "factors = np.exp(NORMAL_90 * costs.log_sigma / 2)"),
        ("fast and slow ranks agree on the fast one", "return min(group.speed for group in cluster.groups)",
         "return max(group.speed for group in cluster.groups)"),
    ),
    *_of(
        "simulate",
        ("collectives always wait", "hidden_s = (1 - 1 / task.num_ranks) * min(whole.seconds, estimates[place].seconds)",
         "hidden_s = 0.0"),
        ("a pipeline without its ramp", "total_s = micro_batches * slowest + ramp_s / virtual_stages + hops_s + transfers_s",
         "total_s = micro_batches * slowest + hops_s + transfers_s"),
        ("virtual stages do not shorten the ramp", "micro_batches * slowest + ramp_s / virtual_stages + hops_s",
         "micro_batches * slowest + ramp_s + hops_s"),
        ("hops one way", "hops_s = 2 * (len(both) - 1) * hop_s", "hops_s = (len(both) - 1) * hop_s"),
        ("one micro-batch in flight", "others = one.stash_bytes * (stage.num_in_flight - 1)", "others = 0.0"),
        ("peak of the emptiest op", "peak = float(most.max())", "peak = float(most.min())"),
        ("peak of the first repetition alone", "most = np.maximum(first, last)", "most = first"),
        ("small blocks not rounded", "size = max(ROUNDING_BYTES, -(-int(num_bytes) // ROUNDING_BYTES) * ROUNDING_BYTES)",
         "size = max(ROUNDING_BYTES, int(num_bytes))"),
        ("bubble of the fastest stage", "slowest = max(runs, key=lambda run: run.forward_s + run.backward_s)",
         "slowest = min(runs, key=lambda run: run.forward_s + run.backward_s)"),
        ("memory reserved for one pass more", "others = stage.num_in_flight - 1\n", "others = stage.num_in_flight\n"),
        ("segments rounded down", "return -(-size // LARGE_ROUNDING_BYTES) * LARGE_ROUNDING_BYTES",
         "return max(size // LARGE_ROUNDING_BYTES, 1) * LARGE_ROUNDING_BYTES"),
    ),
    *_of(
        "resources",
        ("received and sent bytes swapped",
         "return through_memory, receives * traffic.network_bytes, sends * traffic.network_bytes",
         "return through_memory, sends * traffic.network_bytes, receives * traffic.network_bytes"),
        ("received and sent counters swapped", '"received": from_counter(times_s, received_bytes),',
         '"received": from_counter(times_s, sent_bytes),'),
        ("an all-reduce sends once", 'rounds = 2 if task.kind == "all_reduce" else 1\n    return Traffic(',
         "rounds = 1\n    return Traffic("),
        ("traffic inside a node on the network", "network_bytes=rounds * size * (nodes - 1) / nodes / inside",
         "network_bytes=rounds * size * (ranks - 1) / ranks"),
        ("all-to-all keeps its own part", "network_bytes=size * (ranks - inside) / ranks if nodes > 1 else 0.0",
         "network_bytes=size if nodes > 1 else 0.0"),
        ("collectives do not busy the device", 'span.category in ("host", "bubble", "wait"):',
         'span.category in ("host", "bubble", "wait", "communication"):'),
        ("a mean without lengths", "return float(np.dot(self.levels, self.lengths_s)) / self.duration_s",
         "return float(np.mean(self.levels))"),
        ("bytes of the whole run", "received_bytes=(received_bytes[-1] - received_bytes[0]) / num_steps",
         "received_bytes=(received_bytes[-1] - received_bytes[0])"),
    ),
    *_of(
        "embed",
        ("a workload not shifted by its neighbours", "seconds = physical_s * math.exp(shift)", "seconds = physical_s"),
        ("the interval of a neighbour halved", "width = math.exp(Z90 * max(self.sigma_at(self.farness(summary)), MIN_SIGMA))",
         "width = math.exp(Z90 * max(self.sigma_at(self.farness(summary)), MIN_SIGMA) / 2)"),
        ("far as sure as near", "grown = self.sigma + (self.family_sigma - self.sigma) * max(0.0, farness - 1)",
         "grown = self.sigma"),
        ("gradients of one layer", "gradient_bytes=sum(tensor.num_bytes * tensor.copies for tensor in parameters)",
         "gradient_bytes=sum(tensor.num_bytes for tensor in parameters)"),
        ("work of one repetition", "work[sort] += count * np.array(", "work[sort] += np.array("),
    ),
    *_of(
        "learn",
        ("the surest kind speaks for all", "log_spread=max(rate.log_spread for rate in rates)",
         "log_spread=min(rate.log_spread for rate in rates)"),
        ("a collective's rate inverted", "bytes_per_s=float(1 / both[1])", "bytes_per_s=float(both[1])"),
    ),
    *_of(
        "plan",
        ("the dearest plan first", "bound.of(self.objective) <= known[self.top - 1][0] * (1 + SLACK)",
         "bound.of(self.objective) >= known[self.top - 1][0] * (1 + SLACK)"),
        ("offers beyond what there is", "most = min(most, offer.max_nodes)", "most = max(most, offer.max_nodes)"),
        ("too few devices offered", "if count <= most and count * per_node >= wanted.min_devices",
         "if count <= most and count >= wanted.min_devices"),
        ("one step past what fits", "return ask.limit(low * step)\n", "return ask.limit((low + 1) * step)\n"),
        ("a slower change called faster", "seconds_ratio=before.samples_per_s / after.samples_per_s",
         "seconds_ratio=after.samples_per_s / before.samples_per_s"),
    ),
    *_of(
        "schedule",
        ("makespan from zero", "return last - float(np.asarray(schedule.submit_s).min())", "return last"),
        ("slowdown below one", "slowdown = np.maximum(jct / np.maximum(duration, SLOWDOWN_FLOOR_S), 1.0)",
         "slowdown = jct / np.maximum(duration, SLOWDOWN_FLOOR_S)"),
        ("checkpoints for free", "return self.checkpoint_every_s / (self.checkpoint_every_s + self.checkpoint_s)", "return 1.0"),
        ("utilization of busy nodes", "utilization=used / capacity if capacity else math.nan",
         "utilization=used / max(used, 1.0) if capacity else math.nan"),
        ("speed without overhead", "return num_gpus / (1 + self.overhead * max(num_gpus - 1, 0))", "return float(num_gpus)"),
        ("forecast intervals halved", "reach = np.exp(NORMAL_90 * spread)", "reach = np.exp(NORMAL_90 * spread / 2)"),
    ),
    *_of(
        "accuracy",
        ("errors of the larger of two", "signed = guess / truth - 1", "signed = guess / np.maximum(truth, guess) - 1"),
        ("a bias without its sign", "bias=float(signed.mean())", "bias=float(error.mean())"),
        ("the ninth decile is the median", "p90=float(np.percentile(error, 90))", "p90=float(np.percentile(error, 50))"),
        ("coverage from below alone", "coverage=sum(low <= value <= high for value", "coverage=sum(low <= value for value"),
        ("a miss costs nothing", "high - low + 2 / (1 - COVERAGE) * outside", "high - low"),
        ("safe and alarm swapped", "false_safe=counts[True, False],\n        false_alarm=counts[False, True]",
         "false_safe=counts[False, True],\n        false_alarm=counts[True, False]"),
        ("false alarms among all runs", "return self.false_alarm / went_well if went_well else None",
         "return self.false_alarm / self.num_cases if went_well else None"),
        ("what is not answered is right", "num_answered=len(pairs),", "num_answered=len(measured),"),
    ),
    *_of(
        "units",
        ("a gibibyte of thousands", "KIB, MIB, GIB = 2**10, 2**20, 2**30", "KIB, MIB, GIB = 2**10, 2**20, 10**9"),
        ("milliseconds are microseconds", '"ms": 1e-3', '"ms": 1e-6'),
        ("half of a float in four bytes", '"fp16": 2, "bf16": 2', '"fp16": 4, "bf16": 2'),
        ("ninety of a hundred are eighty", "NORMAL_90 = 1.645", "NORMAL_90 = 1.282"),
        ("a billion is a million", '"b": GIGA, "t": TERA', '"b": MEGA, "t": TERA'),
        ("a day of hours", "MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0", "MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 43200.0"),
        ("energy in watt hours", "KWH_JOULES = 3.6e6", "KWH_JOULES = 3.6e3"),
    ),
)  # fmt: skip

ACCEPTED: dict[str, str] = {}
"""Survivors that change nothing anybody can see, and why."""


def find_place(mutant: Mutant, rooms: Path) -> Path | str:
    """The one file that holds the text; else what is wrong."""
    found = [path for path in sorted(rooms.rglob("*.py")) if mutant.old in path.read_text(encoding="utf-8")]
    inside = [path for path in found if path.relative_to(rooms).parts[0].removesuffix(".py") == mutant.room] or found
    if len(inside) != 1 or inside[0].read_text(encoding="utf-8").count(mutant.old) != 1:
        return f"its text stands {sum(path.read_text().count(mutant.old) for path in inside)} times in the code"
    return inside[0]


def judge(mutant: Mutant, path: Path, tree: Path) -> tuple[str, float]:
    """Which test killed it; '' where none did."""
    before = path.read_text(encoding="utf-8")
    began = time.monotonic()
    for tests in _in_order(mutant.room):
        path.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            failed = run_tests(tests, tree)
        finally:
            path.write_text(before, encoding="utf-8")
        if failed and failed not in SOUND:
            SOUND[failed] = failed.endswith("(time)") or not run_tests((failed,), tree)
        if failed and SOUND[failed]:
            return failed, time.monotonic() - began
        if failed:
            print(f"{failed} fails without any mistake", flush=True)
    return "", time.monotonic() - began


SOUND: dict[str, bool] = {}
"""Whether a test that noticed something passes without any mistake."""


def run_tests(tests: Sequence[str], tree: Path) -> str:
    """The first test that fails; '' where none does."""
    options = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow")
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *tests, *options],
            cwd=tree,
            env={**os.environ, **quiet, "PYTHONPATH": str(tree / "src")},
            timeout=TIMEOUT_S,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{tests[0]} (time)"
    if done.returncode in (0, 5):
        return ""
    failed = next((line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), tests[0])
    return failed.split(" - ")[0].partition(" ")[2] or tests[0]


def _in_order(room: str) -> list[tuple[str, ...]]:
    """The quick tests of written-down numbers first, then the others at once."""
    quick = ROOT / "tests" / room / "test_bites.py"
    return [*([(str(quick.relative_to(ROOT)),)] if quick.is_file() else []), TESTS[room]]


def copy_tree(folder: Path) -> Path:
    """What the tests need, with code of its own that mistakes are made in."""
    tree = folder / "tree"
    tree.mkdir()
    for source in ROOT.iterdir():
        if source.name in ("src", "tests", "research"):
            shutil.copytree(source, tree / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.name not in (".git", ".venv"):
            (tree / source.name).symlink_to(source)
    if (ROOT.parent / "shared").exists():
        (folder / "shared").symlink_to((ROOT.parent / "shared").resolve())
    return tree


Verdicts = dict[str, dict[str, str]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of mutants")
    parser.add_argument("--rooms", nargs="*", help="rooms")
    parser.add_argument("--list", action="store_true", help="only say where each mutant applies")
    parser.add_argument("--again", action="store_true", help="also judge those that the record knows as killed")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no mutant after this; a later run goes on")
    parser.add_argument("--record", type=Path, default=ROOT / "benchmarks" / "mutants.json", help="verdicts so far")
    parser.add_argument("--write", type=Path, help="a Markdown file for the score of the record")
    options = parser.parse_args()
    known: Verdicts = json.loads(options.record.read_text()) if options.record.is_file() else {}
    chosen = [
        each
        for each in MUTANTS
        if (not options.only or each.name in options.only) and (not options.rooms or each.room in options.rooms)
    ]
    end_s = time.monotonic() + 60 * options.minutes
    stale = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_tree(Path(folder))
        for number, mutant in enumerate(chosen, 1):
            place = find_place(mutant, tree / "src" / "traincast")
            if isinstance(place, str) or options.list:
                stale += isinstance(place, str)
                print(f"{mutant.room:10} {mutant.name:48} {place}", flush=True)
                continue
            told = known.get(_key(mutant), {})
            if (told.get("killed_by") and not options.again) or time.monotonic() > end_s:
                continue
            killer, seconds = judge(mutant, place, tree)
            known[_key(mutant)] = {
                "room": mutant.room,
                "name": mutant.name,
                "killed_by": killer,
                "date": f"{date.today()}",
            }
            options.record.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(
                f"{number:3}/{len(chosen)} {seconds:5.0f} s {mutant.room:10} {mutant.name:48} {killer or 'SURVIVED'}",
                flush=True,
            )
    if options.list:
        return 1 if stale else 0
    killed = sum(bool(known.get(_key(mutant), {}).get("killed_by")) for mutant in chosen)
    print(f"{killed} of {len(chosen)} killed, {stale} stale")
    if options.write:
        options.write.write_text(format_score(known), encoding="utf-8")
    alive = [each for each in chosen if not known.get(_key(each), {}).get("killed_by") and each.name not in ACCEPTED]
    return 1 if alive or stale else 0


def _key(mutant: Mutant) -> str:
    return f"{mutant.room}: {mutant.name}"


def format_score(known: Verdicts) -> str:
    rows = [(mutant, known.get(_key(mutant), {})) for mutant in MUTANTS]
    killed = [(mutant, told) for mutant, told in rows if told.get("killed_by")]
    alive = [(mutant, told) for mutant, told in rows if told and not told["killed_by"]]
    unjudged = [mutant for mutant, told in rows if not told]
    dates = sorted({told["date"] for _, told in rows if told})
    lines = [
        "# Mistakes that our tests notice", "",
        f"`make mutants` makes {len(rows)} realistic mistakes in the rooms that predict, one at a time.",
        "The tests of the room run with it. A test that fails is run once more without it: only tests that bite count.", "",
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}: **{len(killed)} of {len(rows)} were noticed**, "
        f"{len(alive)} were not, {len(unjudged)} were not judged. `benchmarks/mutants.json` holds the verdicts.", "",
        "| room | mistake | noticed by |", "|---|---|---|",
        *(f"| {mutant.room} | {mutant.name} | `{told['killed_by']}` |" for mutant, told in killed),
    ]  # fmt: skip
    if alive or unjudged:
        lines += ["", "## Not noticed, or not judged", "", "| room | mistake | why |", "|---|---|---|"]
        lines += [
            f"| {mutant.room} | {mutant.name} | {ACCEPTED.get(mutant.name, 'no test yet')} |" for mutant, _ in alive
        ]
        lines += [f"| {mutant.room} | {mutant.name} | not judged yet |" for mutant in unjudged]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
