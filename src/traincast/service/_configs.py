"""A request that carries configurations of other projects to one that says the same in its own tables."""

from collections.abc import Mapping
from typing import Any

from traincast.spec import WORKLOAD_FIELDS, ConfigText, Question, WorkloadOptions

_OPTIONS = tuple(item.name for item in WORKLOAD_FIELDS)


def expand_configs(request: Mapping[str, Any]) -> dict[str, Any]:
    """What the tables of the request say wins; what was not used is kept under `said`. Texts are read, no file is."""
    texts = request.get("configs") or ()
    name = request["workload"].get("name", "")
    if not texts and not name.startswith("hf:"):
        return dict(request)
    from traincast.configs import merge_configs

    workload = request["workload"]
    question = Question(
        source=name,
        workload=WorkloadOptions(**{key: workload.get(key) for key in _OPTIONS}),
        cluster=request["cluster"],
        parallelism=request["parallelism"],
        job=request["job"],
        configs=tuple(ConfigText(**text) for text in texts),
    )
    merged = merge_configs(question, local=False)
    others = {key: value for key, value in workload.items() if key not in (*_OPTIONS, "name")}
    named = {} if others else {"name": merged.source}
    return {
        **request,
        "workload": {**others, **named, **merged.workload.given()},
        "cluster": merged.cluster,
        "parallelism": merged.parallelism,
        "job": merged.job,
        "said": merged.said,
    }
