"""Questions as users ask them, beside figures that are recalled: python -m research.studies.asked [--only WORD] [--markdown FILE]

Figures are recalled, not looked up, and nothing is fitted to them: they are there to find faults. A ratio is forecast time over
recalled time, so above 1 the forecast is slower.
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
    recalled: float | None
    unit: str
    says: str


def read_questions(path: Path = QUESTIONS) -> list[Asked]:
    """Lines of `command | figure unit | what is recalled`; a line that starts with `#` names the group of those below it."""
    found, group = [], ""
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            group = line.lstrip("# ")
        elif line.strip():
            command, figure, says = (part.strip() for part in (line + " | |").split("|")[:3])
            number, _, unit = figure.partition(" ")
            found.append(
                Asked(group=group, command=command, recalled=float(number) if number else None, unit=unit, says=says)
            )
    return found


def figure_of(answer: dict, unit: str) -> float:
    """The answer in the unit of the recalled figure."""
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


def show(question: Asked, answer: dict | str) -> str:
    if isinstance(answer, str):
        return f"| {question.command} | {question.says} | error: {answer} | | | | |"
    step, memory = answer["step"], answer["memory"]
    low, high = step["low_s"] / step["seconds"], step["high_s"] / step["seconds"]
    unit = question.unit or "s"
    ours, ratio, held = figure_of(answer, unit), "", ""
    if question.recalled is not None:
        slower = ours / question.recalled if unit in ("s", "h", "d", "gh") else question.recalled / ours
        ratio, held = f"{slower:.2f}", "yes" if slower * low <= 1 <= slower * high else "**no**"
    recalled = f"{question.recalled:g}" if question.recalled is not None else ""
    return (
        f"| `{question.command}` | {question.says} | {recalled} | {ours:.4g} {UNITS[unit]} | {ratio} | "
        f"{low - 1:+.0%} {high - 1:+.0%} {held} | {answer['utilization'] or 0:.0%} | {memory['fit_probability']:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="questions whose command or group holds this word")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    lines, group = [], None
    for question in read_questions():
        if options.only not in f"{question.group} {question.command}":
            continue
        if question.group != group:
            group = question.group
            head = "| asked | recalled | figure | forecast | ratio | interval, holds | MFU | fits |"
            lines += ["", f"## {group}", "", head, "|---|---|--:|--:|--:|---|--:|--:|"]
            sys.stdout.write("\n".join(lines[-5:]) + "\n")
        lines.append(show(question, ask(question.command)))
        sys.stdout.write(lines[-1] + "\n")
        sys.stdout.flush()
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
