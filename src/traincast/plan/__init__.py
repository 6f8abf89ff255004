"""Tries many clusters and parallelisms: a job becomes ranked plans that keep a deadline, a budget and the memory."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

__all__ = [
    "Candidate",
    "Figures",
    "Limits",
    "Miss",
    "Plan",
    "Search",
    "Space",
    "job_quantile_s",
    "meet_probability",
    "plan",
    "search_plans",
    "settle",
]


if TYPE_CHECKING:
    from traincast.plan._advice import advise as advise
    from traincast.plan._advice import with_batch as with_batch
    from traincast.plan._capacity import largest_batch as largest_batch
    from traincast.plan._capacity import suggest_changes as suggest_changes
    from traincast.plan._emit import EMITTERS as EMITTERS
    from traincast.plan._emit import emit as emit
    from traincast.plan._emit import make_recipe as make_recipe
    from traincast.plan._emit import slurm_flags as slurm_flags
    from traincast.plan._emit.sbatch import BatchScript as BatchScript
    from traincast.plan._emit.sbatch import judge as judge
    from traincast.plan._emit.sbatch import read_batch_script as read_batch_script
    from traincast.plan._fit import find_fit as find_fit
    from traincast.plan._highlights import Highlight as Highlight
    from traincast.plan._highlights import find_plain as find_plain
    from traincast.plan._highlights import highlight as highlight
    from traincast.plan._nouns import SEARCHED as SEARCHED
    from traincast.plan._nouns import Candidate as Candidate
    from traincast.plan._nouns import Figures as Figures
    from traincast.plan._nouns import JobAt as JobAt
    from traincast.plan._nouns import Limits as Limits
    from traincast.plan._nouns import Miss as Miss
    from traincast.plan._nouns import Plan as Plan
    from traincast.plan._nouns import Search as Search
    from traincast.plan._nouns import Space as Space
    from traincast.plan._nouns import job_quantile_s as job_quantile_s
    from traincast.plan._nouns import meet_probability as meet_probability
    from traincast.plan._offers import Chosen as Chosen
    from traincast.plan._offers import Wanted as Wanted
    from traincast.plan._offers import catalogue_offers as catalogue_offers
    from traincast.plan._offers import check_regions as check_regions
    from traincast.plan._offers import offer_of as offer_of
    from traincast.plan._offers import read_offers as read_offers
    from traincast.plan._offers import size_offers as size_offers
    from traincast.plan._plans import plan as plan
    from traincast.plan._plans import search_plans as search_plans
    from traincast.plan._preselect import preselect as preselect
    from traincast.plan._prices import STALE_DAYS as STALE_DAYS
    from traincast.plan._prices import JobPrice as JobPrice
    from traincast.plan._prices import PriceList as PriceList
    from traincast.plan._prices import is_stale as is_stale
    from traincast.plan._prices import price_everywhere as price_everywhere
    from traincast.plan._prices import read_prices as read_prices
    from traincast.plan._search import Settings as Settings
    from traincast.plan._search import search as search
    from traincast.plan._search import sift as sift
    from traincast.plan._space import Shape as Shape
    from traincast.plan._space import list_candidates as list_candidates
    from traincast.plan._vary import JobsOnce as JobsOnce
    from traincast.plan._vary import Settled as Settled
    from traincast.plan._vary import StackOf as StackOf
    from traincast.plan._vary import settle as settle
    from traincast.plan._vary import space_of as space_of
    from traincast.plan._what_if import Delta as Delta
    from traincast.plan._what_if import what_if as what_if

__getattr__ = load_lazily(
    __name__,
    {
        "_advice": (
            "advise",
            "with_batch",
        ),
        "_capacity": (
            "largest_batch",
            "suggest_changes",
        ),
        "_emit": (
            "EMITTERS",
            "emit",
            "make_recipe",
            "slurm_flags",
        ),
        "_emit.sbatch": (
            "BatchScript",
            "judge",
            "read_batch_script",
        ),
        "_fit": ("find_fit",),
        "_highlights": (
            "Highlight",
            "find_plain",
            "highlight",
        ),
        "_nouns": (
            "JobAt",
            "SEARCHED",
            "Candidate",
            "Figures",
            "Limits",
            "Miss",
            "Plan",
            "Search",
            "Space",
            "job_quantile_s",
            "meet_probability",
        ),
        "_offers": (
            "Chosen",
            "Wanted",
            "catalogue_offers",
            "check_regions",
            "offer_of",
            "read_offers",
            "size_offers",
        ),
        "_search": (
            "Settings",
            "search",
            "sift",
        ),
        "_space": (
            "Shape",
            "list_candidates",
        ),
        "_plans": (
            "plan",
            "search_plans",
        ),
        "_preselect": ("preselect",),
        "_prices": (
            "STALE_DAYS",
            "JobPrice",
            "PriceList",
            "is_stale",
            "price_everywhere",
            "read_prices",
        ),
        "_vary": (
            "JobsOnce",
            "StackOf",
            "Settled",
            "settle",
            "space_of",
        ),
        "_what_if": (
            "Delta",
            "what_if",
        ),
    },
)
