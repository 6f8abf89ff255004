"""Questions that configurations ask, completed but not forecast."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traincast.configs import FORMATS, write_config
from traincast.plan import complete_question
from traincast.spec import Cluster, ConfigText, Parallelism, Question

FILES = Path(__file__).parent / "files"
ENDINGS = {"json": "json", "yaml": "yaml", "toml": "toml", "shell": "sh", "python": "py"}


@dataclass(frozen=True, kw_only=True)
class Whole:
    question: Question
    plan: Parallelism
    cluster: Cluster
    said: list[str]


def complete(question: Question) -> Whole:
    done = complete_question(question)
    return Whole(question=done.question, plan=done.parallelism, cluster=done.cluster, said=list(done.assumptions))


def write(whole: Whole, kind: str) -> ConfigText:
    cluster = whole.cluster
    text = write_config(
        whole.question, whole.plan, kind, num_nodes=cluster.num_nodes, devices_per_node=cluster.devices_per_node
    )
    return ConfigText(name=f"written.{ENDINGS[FORMATS[kind].syntax]}", text=text)


def file_of(name: str, folder: Path) -> str:
    """A shipped file; recipes in Python are kept as text, so that nothing here imports or checks them."""
    file, colon, function = name.partition(":")
    if not file.endswith(".py"):
        return str(FILES / name)
    shutil.copy(FILES / f"{file}.txt", folder / file)
    return f"{folder / file}{colon}{function}"


def said_by(whole: Whole) -> dict[str, Any]:
    """Everything that a question says, for comparison."""
    question = whole.question
    return {"source": question.source, **question.workload.given(), **question.job}
