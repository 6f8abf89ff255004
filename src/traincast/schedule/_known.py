"""Policies by name: our own and those of other packages, and what each of them can be told."""

from collections.abc import Callable, Collection, Sequence

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.registry import Registry
from traincast.schedule._elastic import ELASTIC
from traincast.schedule._jobs import JobTable
from traincast.schedule._kueue import make_kueue
from traincast.schedule._policies import POLICIES, Policy, Quotas
from traincast.schedule._protocols import RoundPolicy
from traincast.schedule._shares import SHARE_POLICIES, SharePolicy
from traincast.schedule._slurm.policy import make_slurm
from traincast.spec import Fleet

AnyPolicy = Policy | RoundPolicy | SharePolicy
Maker = Callable[[JobTable, Fleet], AnyPolicy]
"""A policy that needs the trace or the fleet before it can be made."""


def make_quotas(jobs: JobTable, fleet: Fleet) -> Policy:
    """Equal shares for all tenants."""
    tenants = sorted({tenant or "" for tenant in jobs.tenants})
    return Quotas(owned=tuple((tenant, fleet.num_gpus / len(tenants)) for tenant in tenants))


REGISTRY: Registry[AnyPolicy | Maker] = Registry(
    kind="policy",
    plural="policies",
    entries={
        **POLICIES,
        "quota": make_quotas,
        "slurm": make_slurm,
        "kueue": make_kueue,
        **ELASTIC,
        **SHARE_POLICIES,
    },
    aliases={"backfill": "easy", "easy-backfill": "easy", "conservative-backfill": "conservative"},
)
"""Every policy that a command can name. Another package adds one with an entry point of the group `traincast.policies`."""


def find_policy(name: str, jobs: JobTable, fleet: Fleet) -> AnyPolicy:
    found = REGISTRY.find(name)
    if is_maker(found):
        found = found(jobs, fleet)  # type: ignore[operator]
    if not any(hasattr(found, verb) for verb in ("fit", "allocate", "begin")):
        raise InvalidInput(
            f"the policy {name!r} has neither fit (a queue), allocate (elastic) nor begin (shares of time); "
            "see docs/how-to/schedule.md for the forms a policy can have"
        )
    return found  # type: ignore[return-value]


def is_maker(entry: object) -> bool:
    return callable(entry) and not hasattr(entry, "name")


@noun
class Traits:
    """What can make a difference to a policy."""

    estimates: bool
    """It asks how long a job takes."""
    scale: bool
    """It compares run times with the clock and not only with each other."""
    stops: bool
    """It stops running jobs."""
    resizes: bool
    """It changes the number of GPUs of a running job."""
    places: bool
    """The rule of placement is not its own."""
    quotas: bool
    """Tenants own GPUs under it."""
    queues: bool
    """It reads queues of Kubernetes."""


OWN_PLACES = ("slurm",)
"""Policies that choose nodes themselves, as the system does that they stand for."""


def traits_of(name: str) -> Traits:
    entry = REGISTRY.find(name)
    elastic = hasattr(entry, "allocate")
    estimates = name not in ("quota", "kueue") if is_maker(entry) else bool(getattr(entry, "uses_estimates", True))
    return Traits(
        estimates=estimates,
        scale=estimates and bool(getattr(entry, "uses_scale", True)),
        stops=_stops(entry),
        resizes=elastic,
        places=name not in OWN_PLACES,
        quotas=name == "quota",
        queues=name == "kueue",
    )


def _stops(entry: object) -> bool:
    if hasattr(entry, "begin"):  # a turn is over when its round is
        return True
    if hasattr(entry, "allocate"):
        return bool(getattr(entry, "stops_jobs", True))
    if entry is make_slurm:
        return False
    return is_maker(entry) or bool(getattr(entry, "preemptive", True))


@noun
class _Rule:
    trait: str
    why: str
    strict: bool = False
    """Beside policies that honour the option, a row that does not would mislead."""


RULES: dict[str, _Rule] = {
    "--sigma": _Rule(trait="estimates", why="never asks how long a job takes"),
    "--bias": _Rule(trait="scale", why="compares estimates with nothing but each other, if it asks for them at all"),
    "--plan-with": _Rule(trait="estimates", why="never asks how long a job takes"),
    "--knows": _Rule(trait="estimates", why="never asks how long a job takes"),
    "--preempt-cost": _Rule(trait="stops", why="never stops a running job"),
    "--resize-cost": _Rule(trait="resizes", why="never changes the number of GPUs of a running job"),
    "--queues": _Rule(trait="queues", why="knows no queues of Kubernetes"),
    "--quota": _Rule(trait="quotas", why="knows no GPUs that tenants own"),
    "--placement": _Rule(trait="places", why="chooses nodes by its own rules", strict=True),
}


def check_options(names: Sequence[str], asked: Collection[str], *, stopping: Collection[str] = ()) -> list[str]:
    """Refuse what a policy cannot honour. Where only some of several policies can, the others are named in a note.

    `stopping` names policies that stop running jobs as they are configured.
    """
    notes = []
    for option in asked:
        rule = RULES.get(option)
        if rule is None:
            continue
        heard = stopping if rule.trait == "stops" else ()
        deaf = [name for name in names if name not in heard and not getattr(traits_of(name), rule.trait)]
        if deaf and (rule.strict or len(deaf) == len(names)):
            raise InvalidInput(
                f"{option} cannot be honoured by {' and '.join(deaf)}, which {rule.why}; leave one of them out"
            )
        if deaf:
            notes.append(f"{option} changes nothing for {' and '.join(deaf)}, which {rule.why}")
    return notes
