"""An answer to the text of the file that starts the same job elsewhere."""

from typing import TYPE_CHECKING

from traincast.spec import Forecast, Question

if TYPE_CHECKING:
    from traincast.forecast import Resolved


def emit_answer(question: Question, resolved: "Resolved", answer: Forecast, *, kind: str) -> str:
    from traincast.forecast import fill_in
    from traincast.plan import Candidate, Plan, emit

    batch = resolved.job.graph.batch_size
    candidate = Candidate(cluster=resolved.cluster, parallelism=resolved.parallelism, batch=batch)
    plan = Plan(candidate=candidate, forecast=answer, deadline_probability=None)
    whole = fill_in(question)
    return emit(plan, kind, precision=whole.workload.precision or "fp32", question=whole).rstrip("\n")
