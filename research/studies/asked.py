"""Questions as users ask them, beside published figures: python -m research.studies.asked [--only WORD] [--markdown FILE]

Figures are not verified, and nothing is fitted to them: they are there to find faults. A ratio is forecast time over
published time, so above 1 the forecast is slower.
"""

import argparse
import contextlib
import io
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from traincast.__main__ import main as traincast

QUESTIONS = Path(__file__).with_name("asked.txt")
UNITS = {
    "s": "s a step",
    "tg": "tokens/s per device",
    "t": "tokens/s",
    "i": "samples/s",
    "m": "% of the peak",
    "h": "hours",
    "d": "days",
    "gh": "device hours",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    group: str
    command: str
    published: float | None
    unit: str
    says: str


def read_questions(path: Path = QUESTIONS) -> list[Asked]:
    """Lines of `command | figure unit | what is published`; a line that starts with `#` names the group of those below it."""
    found, group = [], ""
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            group = line.lstrip("# ")
        elif line.strip():
            command, figure, says = (part.strip() for part in (line + " | |").split("|")[:3])
            number, _, unit = figure.partition(" ")
            found.append(
                Asked(group=group, command=command, published=float(number) if number else None, unit=unit, says=says)
            )
    return found


def figure_of(answer: dict, unit: str) -> float:
    """The answer in the unit of the published figure."""
    step_s, devices = answer["step"]["seconds"], answer["num_devices"]
    tokens = answer["global_batch"] * (answer["settings"]["seq"] or 1)
    total_s = answer["job"]["total"]["seconds"]
    return {
        "s": step_s,
        "tg": tokens / step_s / devices,
        "t": tokens / step_s,
        "i": answer["global_batch"] / step_s,
        "m": 100 * answer["utilization"],
        "h": total_s / 3600,
        "d": total_s / 86400,
        "gh": total_s / 3600 * devices,
    }[unit]


def ask(command: str) -> dict | str:
    """What the command line answers, or its error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = traincast([*shlex.split(f"forecast {command}"), "--json"])
    return json.loads(out.getvalue()) if code == 0 else err.getvalue().strip()


def judge(question: Asked, answer: dict | str) -> dict:
    """Figure, ratio, interval and verdict of an answer; of an error its sentence."""
    if isinstance(answer, str):
        return {"error": answer}
    step = answer["step"]
    low, high = step["low_s"] / step["seconds"], step["high_s"] / step["seconds"]
    unit = question.unit or "s"
    found = {"unit": unit, "ours": figure_of(answer, unit), "low": low, "high": high,
             "mfu": answer["utilization"], "fits": answer["memory"]["fit_probability"]}  # fmt: skip
    if question.published is not None:
        ours = found["ours"]
        found["ratio"] = ours / question.published if unit in ("s", "h", "d", "gh") else question.published / ours
        found["holds"] = found["ratio"] * low <= 1 <= found["ratio"] * high
    return found


def show(question: Asked, now: dict, before: dict | None) -> str:
    published = "" if question.published is None else f"{question.published:g}"
    first = f"| `{question.command}` | {question.says} | {published} | {_say(before, 'ratio')} | "
    if "error" in now:
        return f"{first}{now['error']} | | | | |"
    width = f"{now['low'] - 1:+.0%} {now['high'] - 1:+.0%}"
    holds = "" if "holds" not in now else "yes" if now["holds"] else "no"
    return (
        f"{first}{_say(now, 'ratio')} | {now['ours']:.4g} {UNITS[now['unit']]} | {width} {holds} | {now['mfu'] or 0:.0%} | "
        f"{now['fits']:.2f} |"
    )


def _say(found: dict | None, key: str) -> str:
    if found is None or "error" in found:
        return "" if found is None else "refused"
    return f"{found[key]:.2f}" if key in found else f"({found['ours']:.3g})"


HEAD = "| asked | published | figure | before | now | forecast | interval, holds | MFU | fits |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="questions whose command or group holds this word")
    parser.add_argument("--record", type=Path, help="write what was found as JSON, to be shown as before later")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    before = json.loads(options.before.read_text()) if options.before else {}
    found: dict[str, dict] = {}
    lines, group = [], None
    for question in read_questions():
        if options.only not in f"{question.group} {question.command}":
            continue
        if question.group != group:
            group = question.group
            lines += ["", f"## {group}", "", HEAD, "|---|---|--:|--:|--:|--:|---|--:|--:|"]
        found[question.command] = judge(question, ask(question.command))
        lines.append(show(question, found[question.command], before.get(question.command)))
    page = "\n".join(lines) + "\n"
    sys.stdout.write(page)
    if options.record:
        options.record.write_text(json.dumps(found))
    if options.markdown:
        text = options.markdown.read_text() if options.markdown.exists() else ""
        head = text.partition("\n## ")[0].rstrip()
        options.markdown.write_text(f"{head}\n{page}")


if __name__ == "__main__":
    main()
