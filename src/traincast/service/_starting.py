"""A forecast to what is done with it next: the command that asks the same, the file that starts it, what would help."""

import dataclasses
import shlex
import tempfile
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput
from traincast.files import save_graph
from traincast.forecast import Resolved, write_command
from traincast.plan import Candidate, Plan, advise, emit
from traincast.spec import Forecast, Graph, Question, Scalable


def say_command(question: Question) -> str | None:
    """The command that asks the same; None where no command can: an uploaded model, nodes of several kinds."""
    if not question.source and not question.workload.has_shape:
        return None
    try:
        return shlex.join(write_command(question))
    except InvalidInput:
        return None


def emit_file(question: Question, resolved: Resolved, answer: Forecast, *, kind: str) -> str:
    batch = resolved.job.graph.batch_size
    candidate = Candidate(cluster=resolved.cluster, parallelism=resolved.parallelism, batch=batch)
    plan = Plan(candidate=candidate, forecast=answer, deadline_probability=None)
    return emit(plan, kind, precision=question.workload.precision or "fp32", question=question)


def give_advice(question: Question, resolved: Resolved, *, uploaded: Graph | Scalable | None = None) -> dict[str, Any]:
    """`uploaded`: the model where no name says it."""
    with tempfile.TemporaryDirectory() as folder:
        if uploaded is not None:
            path = Path(folder) / "uploaded.graph.json"
            save_graph(uploaded, path)
            question = dataclasses.replace(question, source=str(path))
        found = advise(question, resolved.cluster, resolved.parallelism)
    return {"sentences": list(found.sentences), "suggestions": found.suggestions}
