"""An existing Slurm script: what it asks for, and what of that a forecast would write otherwise."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from traincast.errors import InvalidInput
from traincast.plan._nouns import meet_probability
from traincast.spec import JobTime
from traincast.units import DAY_S, HOUR_S, MINUTE_S, parse_bytes

SHORT = {"-N": "--nodes", "-t": "--time", "-n": "--ntasks", "-G": "--gpus", "-J": "--job-name"}
MOST_BYTES = 1 << 20
_GPUS = re.compile(
    r"(?:gpu:)?(?:(?P<kind>[A-Za-z][\w.-]*):)?(?P<count>[0-9]{1,9})$|gpu(?::(?P<alone>[A-Za-z][\w.-]*))?$"
)
_UNITS = {"K": "KiB", "M": "MiB", "G": "GiB", "T": "TiB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScript:
    """The #SBATCH lines of a script by their long names; a later line wins, as in sbatch."""

    name: str
    flags: Mapping[str, str]

    @property
    def num_nodes(self) -> int | None:
        """A range such as 2-4 may start with its lower end."""
        text = self.flags.get("--nodes")
        return None if text is None else _whole(text.partition("-")[0], "--nodes", self.name)

    @property
    def devices_per_node(self) -> int | None:
        for flag in ("--gpus-per-node", "--gres"):
            counted = [count for _, count in self._gpus(flag)]
            if counted:
                return sum(counted)
        total = sum(count for _, count in self._gpus("--gpus"))
        nodes = self.num_nodes or 1
        return total // nodes if total and total % nodes == 0 else None

    @property
    def device(self) -> str | None:
        """The type the cluster gives its GPUs, such as a100; a name of the operator's, which a catalogue may not know."""
        kinds = [kind for flag in ("--gpus-per-node", "--gres", "--gpus") for kind, _ in self._gpus(flag) if kind]
        return kinds[0].lower() if kinds else None

    @property
    def limit_s(self) -> float | None:
        text = self.flags.get("--time")
        return None if text is None else parse_slurm_time(text)

    def _gpus(self, flag: str) -> Iterator[tuple[str, int]]:
        for part in self.flags.get(flag, "").split(","):
            word = part.partition("(")[0].strip()
            if flag == "--gres" and word.split(":")[0] != "gpu":
                continue
            found = _GPUS.match(word)
            if found is not None:
                yield found["kind"] or found["alone"] or "", int(found["count"] or 1)


def read_batch_script(path: Path) -> BatchScript:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise InvalidInput(f"{path} has {len(content):,} bytes; a batch script has at most {MOST_BYTES:,}")
    flags: dict[str, str] = {}
    for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            # Slurm reads no further than the first command either.
            break
        if line.startswith("#SBATCH"):
            flags.update(_flags_of(line.removeprefix("#SBATCH"), f"{path}, line {number}"))
    if not flags:
        raise InvalidInput(f"{path} has no #SBATCH line before its first command; it is no script for sbatch")
    return BatchScript(name=str(path), flags=flags)


def _flags_of(text: str, where: str) -> dict[str, str]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise InvalidInput(f"{where}: {error}") from None
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, given, value = word.partition("=")
            found[name] = value if given else ""
        elif word.startswith("-") and word[:2] in SHORT:
            name = SHORT[word[:2]]
            found[name] = word[2:].lstrip("=")
        elif name and not found[name]:
            found[name] = word
    return found


def judge(script: BatchScript, flags: Mapping[str, str], job: JobTime) -> Iterator[str]:
    """What the script asks for beside what the forecast would write."""
    if script.limit_s is None:
        yield f"{script.name} sets no --time; the partition's own limit counts"
    else:
        chance = meet_probability(job, script.limit_s)
        yield f"--time={script.flags['--time']} of the script is enough with probability {chance:.0%}"
    asked, wanted = parse_slurm_memory(script.flags.get("--mem", "")), parse_slurm_memory(flags["--mem"])
    if asked is not None and wanted is not None and asked < wanted:
        yield f"--mem={script.flags['--mem']} of the script is less than the {flags['--mem']} of the rule of thumb"
    for name, found in (("--nodes", script.num_nodes), ("--gres", script.devices_per_node)):
        expected = flags[name].rpartition(":")[2]
        if found is not None and str(found) != expected:
            yield f"the script asks for {found} with {name}, the job was forecast with {expected}"


def parse_slurm_time(text: str) -> float | None:
    """minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]; None: no limit, or not a time."""
    matched = re.fullmatch(r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?", text.strip())
    if matched is None:
        return None
    days, first, second, third = (None if part is None else int(part) for part in matched.groups())
    if days is not None:
        return days * DAY_S + (first or 0) * HOUR_S + (second or 0) * MINUTE_S + (third or 0)
    if third is not None:
        return (first or 0) * HOUR_S + (second or 0) * MINUTE_S + third
    return (first or 0) * MINUTE_S + (second or 0)


def parse_slurm_memory(text: str) -> float | None:
    """4000 (MiB), 32G, 0 or nothing known: None, because 0 means all there is."""
    matched = re.fullmatch(r"([0-9]{1,12})([KMGT]?)B?", text.strip().upper())
    if matched is None or int(matched[1]) == 0:
        return None
    return parse_bytes(f"{matched[1]}{_UNITS[matched[2] or 'M']}")


def _whole(text: str, flag: str, where: str) -> int:
    if re.fullmatch(r"0*[1-9][0-9]{0,8}", text.strip()) is None:
        raise InvalidInput(f"{where}: {flag}={text[:40]}; a whole number of at least 1 is wanted")
    return int(text)
