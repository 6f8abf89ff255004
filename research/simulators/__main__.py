"""Replays every reference run and prints the table of agreement.

python -m research.simulators                                    all runs below ../shared/data/sched_refs
python -m research.simulators --references DIR --markdown FILE   the table into the marked part of a page
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from research.simulators.agreement import EXACTLY, Agreement, not_replayed, reference_runs
from traincast.errors import TraincastError
from traincast.files import write_whole
from traincast.report import format_json
from traincast.report._schedule import align

BEGIN, END = "<!-- agreement -->", "<!-- /agreement -->"


def format_agreement(rows: Sequence[Agreement], left_out: Sequence[str] = ()) -> str:
    table = [["peer", "run", "policy", "jobs equal", "mean JCT theirs", "ours", "error", "makespan", "wanted", ""]]
    for row in rows:
        table.append(
            [row.peer, row.run, row.policy, f"{row.num_equal:,}/{row.num_jobs:,}", f"{row.peer_mean_s:,.2f}",
             f"{row.our_mean_s:,.2f}", f"{row.mean_error:+.2%}", f"{row.makespan_error:+.2%}", row.wanted,
             "yes" if row.reached else "NO"]
        )  # fmt: skip
    exact = [row for row in rows if row.wanted == EXACTLY]
    reached = sum(row.reached for row in rows)
    summary = (
        f"{sum(row.num_equal == row.num_jobs for row in exact)} of {len(exact)} deterministic runs equal for every job; "
        f"{reached} of {len(rows)} runs within what is wanted"
    )
    missing = "".join(f"\nnot replayed: {line}" for line in left_out)
    return f"{align(table)}\n\n{summary}{missing}"


def format_agreement_markdown(rows: Sequence[Agreement]) -> str:
    lines = ["| peer | run | policy | jobs equal | mean JCT theirs, s | ours, s | error | makespan | wanted | reached |",
             "|---|---|---|--:|--:|--:|--:|--:|---|---|"]  # fmt: skip
    for row in rows:
        lines.append(
            f"| {row.peer} | {row.run} | {row.policy} | {row.num_equal:,}/{row.num_jobs:,} | {row.peer_mean_s:,.2f} | "
            f"{row.our_mean_s:,.2f} | {row.mean_error:+.2%} | {row.makespan_error:+.2%} | {row.wanted} | "
            f"{'yes' if row.reached else 'no'} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--references", type=Path, default=Path("../shared/data/sched_refs"))
    parser.add_argument("--peers", default="", help="only these, comma between them")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    peers = tuple(part for part in given.peers.split(",") if part)
    try:
        rows = [run() for run in reference_runs(given.references, peers)]
    except TraincastError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if given.markdown is not None:
        text = given.markdown.read_text(encoding="utf-8")
        head, _, rest = text.partition(BEGIN)
        _, _, tail = rest.partition(END)
        write_whole(given.markdown, f"{head}{BEGIN}\n{format_agreement_markdown(rows)}\n{END}{tail}")
    sys.stdout.write(
        (format_json(rows) if given.json else format_agreement(rows, not_replayed(given.references))) + "\n"
    )
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
