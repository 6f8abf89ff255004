"""Tries many clusters and parallelisms: a job becomes ranked plans that keep a deadline, a budget and the memory."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

__all__ = [
    "Limits", "Miss", "Plan", "Search", "Space", "plan",
    "search_plans", "settle",
]  # fmt: skip


if TYPE_CHECKING:
    from traincast.plan._advice import Advice, advise, with_batch
    from traincast.plan._ask import ask, complete_question, decide, forecast, jobs_at
    from traincast.plan._can import Held, Way, list_held, list_ways, usual_devices
    from traincast.plan._capacity import largest_batch
    from traincast.plan._emit import EMITTERS, emit, make_recipe, slurm_flags
    from traincast.plan._fit import find_fit
    from traincast.plan._highlights import Highlight, find_plain, highlight
    from traincast.plan._nouns import SEARCHED, Limits, Miss, Plan, Search, Space
    from traincast.plan._offers import Chosen, Wanted, catalogue_offers, choose_machines, read_offers
    from traincast.plan._plans import plan, search_plans
    from traincast.plan._preselect import preselect
    from traincast.plan._prices import STALE_DAYS, JobPrice, price_everywhere, read_prices
    from traincast.plan._remedies import Remedy, Told, tell, train_less
    from traincast.plan._search import INTERRUPTED
    from traincast.plan._vary import settle, space_of
    from traincast.plan._what_if import Delta, what_if

__getattr__ = load_lazily(__name__)
