"""A question with the values of its job file and its trainer's configurations; what the question says itself wins."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput
from traincast.resolve._words import read_amount
from traincast.spec import (
    CLUSTER_FIELDS,
    JOB_FIELDS,
    PLAN_FIELDS,
    WORKLOAD_FIELDS,
    Asked,
    Calibration,
    ConfigText,
    Question,
)


def fill_in(question: Question) -> Question:
    """The question with the values of its job file, where it names one; what the question says itself wins."""
    whole = _merge_job_file(question) if question.source.endswith(".toml") else question
    if whole.configs or whole.source.startswith("hf:") or whole.source.endswith(".json"):
        from traincast.configs import merge_configs

        whole = merge_configs(whole)
    return dataclasses.replace(
        whole,
        cluster=_read_units(whole.cluster, CLUSTER_FIELDS),
        parallelism=_read_units(whole.parallelism, PLAN_FIELDS),
        job=_read_units(whole.job, JOB_FIELDS),
    )


def _merge_job_file(question: Question) -> Question:
    from traincast.files import decode, read_toml

    data = read_toml(question.source)
    if isinstance(data.get("workload"), Mapping):
        data["workload"] = _read_units(data["workload"], WORKLOAD_FIELDS)
    file = decode(Question, data, where=question.source)
    if file.source.endswith(".toml"):
        raise InvalidInput(f"{question.source} names the job file {file.source}; its source must be a model")
    local = Path(question.source).parent / file.source.split(":")[0]
    try:
        found = str(Path(question.source).parent / file.source) if local.is_file() else file.source
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{question.source} names the source {file.source[:80]!r}, which no file can have"
        ) from error
    return Question(
        source=found,
        workload=dataclasses.replace(file.workload, **question.workload.given()),
        cluster=_override_cluster(file.cluster, question.cluster),
        parallelism={**file.parallelism, **question.parallelism},
        job=_override_job(file.job, question.job),
        configs=(*(_beside(config, question.source) for config in file.configs), *question.configs),
        calibration=_calibration_beside(file.calibration, question.source)
        if question.calibration is None
        else question.calibration,
        said=question.said,
    )


def _calibration_beside(named: str | Calibration | None, job_file: str) -> str | Calibration | None:
    """A file that a job file names stands beside it; a name of a kept calibration stays one."""
    if not isinstance(named, str):
        return named
    near = Path(job_file).parent / named
    return str(near) if near.is_file() else named


def _beside(config: str | ConfigText, job_file: str) -> str | ConfigText:
    """A configuration that a job file names stands beside it; 'format:FILE' keeps its format."""
    if not isinstance(config, str):
        return config
    chosen, colon, path = (
        config.rpartition(":") if not config.endswith(".py") and ".py:" not in config else ("", "", config)
    )
    return f"{chosen}{colon}{Path(job_file).parent / path}"


def _override_cluster(table: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    if flags and "groups" in table:
        raise InvalidInput("the job file describes groups of nodes; edit them there instead of using cluster flags")
    merged = {**table, **flags}
    if "device" in flags:
        merged.pop("node", None)
    if "node" in flags:
        merged.pop("device", None)
    return merged


_LENGTHS = ("steps", "samples", "epochs", "tokens")


def _override_job(table: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """What a flag says about the length of the job replaces what the file says about it."""
    kept = {
        name: value
        for name, value in table.items()
        if name not in _LENGTHS or not any(length in flags for length in _LENGTHS)
    }
    return {**kept, **flags}


def _read_units(values: Mapping[str, Any], fields: Iterable[Asked]) -> dict[str, Any]:
    """Amounts that a person wrote with a unit (80GB, 10k, 36h) as numbers."""
    read = dict(values)
    for item in fields:
        if item.name in read:
            read[item.name] = read_amount(item, read[item.name])
    return read
