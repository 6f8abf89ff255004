"""What slurmdbd prints (`sacctmgr -P show qos`, associations) to rules of a site."""

import csv
import math
import re
from pathlib import Path

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.schedule._slurm.conf import parse_slurm_time

ROOT = "root"
_GPUS = re.compile(r"gres/gpu(?::[^=,]*)?=(\d{1,9})")


@noun
class Qos:
    """A quality of service: its priority, whom it preempts and how it is preempted, and its limits; infinity is no limit."""

    name: str
    priority: float = 0.0
    preempts: frozenset[str] = frozenset()
    preempt_mode: str | None = None
    usage_factor: float = 1.0
    gpus_in_all: float = math.inf
    gpus_per_user: float = math.inf
    jobs_per_user: float = math.inf
    wall_s: float = math.inf


@noun
class Association:
    """An account, or a user of one; shares count among those with the same parent."""

    account: str
    user: str | None
    parent: str | None
    shares: float


def read_table(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            return [
                # What stands beyond the last column has no name, and is a list.
                {key: value or "" for key, value in row.items() if key is not None}
                for row in csv.DictReader(file, delimiter="|")
            ]
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    except csv.Error as error:
        raise InvalidInput(f"{path} is not a table: {error}") from error


def _number(text: str | None, default: float) -> float:
    try:
        return float(text) if text else default
    except ValueError:
        return default


def read_qos(path: Path) -> tuple[dict[str, Qos], list[str]]:
    """`sacctmgr -P show qos`; the second answer names limits that are set and not modelled."""
    rows = read_table(path)
    if not rows or "Name" not in rows[0]:
        raise InvalidInput(f"{path} is not the output of sacctmgr -P show qos: it has no column Name")
    found, set_too = {}, set()
    for row in rows:
        name = row["Name"]
        users = row.get("MaxTRESPU") or row.get("MaxTRESPerUser") or ""
        found[name] = Qos(
            name=name,
            priority=_number(row.get("Priority"), 0.0),
            preempts=frozenset(part for part in row.get("Preempt", "").split(",") if part),
            preempt_mode=_mode(row.get("PreemptMode")),
            usage_factor=_number(row.get("UsageFactor"), 1.0),
            gpus_in_all=_count_gpus(row.get("GrpTRES", "")),
            gpus_per_user=_count_gpus(users),
            jobs_per_user=_number(row.get("MaxJobsPU") or row.get("MaxJobsPerUser"), math.inf),
            wall_s=parse_slurm_time(row["MaxWall"]) if row.get("MaxWall") else math.inf,
        )
        set_too |= {key for key, value in row.items() if value and key not in _READ and not _says_nothing(value)}
    notes = [f"limits of QOS that are not modelled: {', '.join(sorted(set_too))}"] if set_too else []
    return found, notes


_READ = (
    "Name", "Priority", "Preempt", "PreemptMode", "UsageFactor", "GrpTRES", "MaxTRESPU", "MaxTRESPerUser", "MaxJobsPU",
    "MaxJobsPerUser", "MaxWall", "Descr",
)  # fmt: skip


def _says_nothing(value: str) -> bool:
    return value.strip("0:.,") in ("", "cluster", "(null)")


def _mode(text: str | None) -> str | None:
    word = (text or "").upper()
    return None if word in ("", "CLUSTER", "(NULL)") else word


def _count_gpus(text: str) -> float:
    found = _GPUS.findall(text)
    return float(sum(int(count) for count in found)) if found else math.inf


def read_associations(path: Path) -> list[Association]:
    """`sacctmgr -P show associations` with Account, User, Share and ParentName."""
    rows = read_table(path)
    if not rows or "Account" not in rows[0]:
        raise InvalidInput(f"{path} is not the output of sacctmgr -P show associations: it has no column Account")
    found = []
    for row in rows:
        account, user = row["Account"].strip(), row.get("User", "").strip() or None
        if account and not (account == ROOT and user is None):
            parent = account if user else row.get("ParentName", "").strip() or ROOT
            shares = _number(row.get("Share") or row.get("Fairshare") or row.get("RawShares"), 1.0)
            found.append(Association(account=account, user=user, parent=parent, shares=shares))
    return found
