"""A plan to what it needs and takes on a cluster: by bounds, which are quick, by its memory, and by its forecast."""

from dataclasses import replace

from traincast.forecast import Engine
from traincast.noun import noun
from traincast.plan._nouns import JobAt
from traincast.spec import Cluster, Forecast, Job, MemoryProfile, Parallelism


@noun
class Judge:
    """Every search asks it: the planner's, the choice of a plan that nobody named, and the search for what makes a job fit."""

    engine: Engine
    cluster: Cluster
    job_at: JobAt

    def least_memory(self, job: Job, plan: Parallelism) -> MemoryProfile:
        """What it cannot need less than."""
        if any(op.kind == "embedding" and op.attrs.get("sparse") for op in job.graph.ops):
            # Replicas share sparse tables, which the bound takes to be whole on each.
            return self.memory(job, plan)
        return self.engine.bound_memory(job, self.cluster, plan)

    def least_time(self, job: Job, plan: Parallelism, *, by_plain: bool) -> tuple[float, float]:
        """(seconds of a step, seconds of it in which a device computes) that it cannot be below. `by_plain`: as the same plan
        that runs nothing again says, which many plans share."""
        plain = self.job_at(job.graph.batch_size, replace(plan, recompute="none")) if by_plain else None
        return self.engine.bound_time(job, self.cluster, plan, plain=plain)

    def memory(self, job: Job, plan: Parallelism) -> MemoryProfile:
        return self.engine.memory(self.engine.lower(job, self.cluster, plan), job, self.cluster)

    def forecast(self, job: Job, plan: Parallelism) -> Forecast:
        return self.engine.forecast(job, self.cluster, plan)
