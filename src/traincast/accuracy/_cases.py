"""Case tables (parquet or csv) to cases, with everything that was measured kept apart from what may be known before."""

import csv
import io
import math
import os
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from traincast.accuracy._steps import as_case_row, is_step_table
from traincast.catalog import name_stack, version_in
from traincast.errors import InvalidInput, MissingExtra, UnknownName, did_you_mean
from traincast.noun import noun
from traincast.spec import PLAIN, QUESTION_FIELDS, RESOURCES

MEASURED_PREFIX = "measured_"
PEER_PREFIX = "peer_"
MEASURED_NUMBERS = (
    "gpu_mean",
    *(f"{resource}_{name}" for resource in RESOURCES for name in ("idle_s", "burst_s", "peak")),
)
"""Columns of resource numbers, each after MEASURED_PREFIX."""
UNTRAINED = "no throughput in the log"
"""How the reason begins why a run without a single step is kept."""
JUDGEMENTS = ("quality", "quality_reason", "n_rep")
"""Columns written by somebody who had seen the result; a forecast must not see them either."""
REQUIRED = ("case_id", "gpu")
UNKNOWN_WORDS = frozenset({"", "nan", "NaN", "None", "null", "NULL", "NA", "N/A", "#N/A", "<NA>", "NaT"})
"""How other programs write an empty cell. The word `none` is not among them: as text it says that there is none."""
_RELEASE = re.compile(r"v?\d+(\.\d+)*")
SURPLUS = "surplus cells"
"""Marks a csv line with more cells than headings."""

Row = Mapping[str, Any]


@noun
class Case:
    """One configuration of one job, as it can be known before it runs. None: not applicable or not known."""

    case_id: str
    gpu: str
    group: str | None = None
    model: str | None = None
    arch: str | None = None
    family: str | None = None
    params: float | None = None
    n_layers: int | None = None
    hidden: int | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    ffn_gated: bool | None = None
    vocab: int | None = None
    seq_len: int | None = None
    tied_embeddings: bool | None = None
    n_experts: int | None = None
    experts_per_token: int | None = None
    moe_ffn: int | None = None
    input_shape: str | None = None
    num_classes: int | None = None
    dataset: str | None = None
    mode: str | None = None
    compiled: bool | None = None
    framework: str | None = None
    dtype: str | None = None
    attention: str | None = None
    act_ckpt: str | None = None
    optimizer: str | None = None
    extra: str | None = None
    n_gpus: int | None = None
    n_nodes: int | None = None
    gpus_per_node: int | None = None
    placement: str | None = None
    intra_bw_GBps: float | None = None  # noqa: N815  (the column's own name)
    inter_bw_Gbps: float | None = None  # noqa: N815
    strategy: str | None = None
    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    vp: int | None = None
    zero: int | None = None
    micro_batch: float | None = None
    grad_accum: int | None = None
    global_batch: float | None = None
    undetermined: str | None = None
    source: str | None = None
    asked: tuple[tuple[str, Any], ...] = ()
    """Columns that are named as a field of a question, such as regime or offload_weights."""

    @property
    def settings(self) -> frozenset[str]:
        """The words of `extra`."""
        return frozenset(word.strip() for word in (self.extra or "").split(";") if word.strip())

    @property
    def version(self) -> str:
        """Of the framework: at the end of its name, or a word of `extra` such as 26.02 or v1."""
        releases = [word for word in sorted(self.settings) if _RELEASE.fullmatch(word)]
        return version_in(self.framework or "") or next((version_in(f"release {word}") for word in releases), "")


@noun
class Observation:
    """What was measured of one case, and what others predicted for it."""

    case_id: str
    step_s: float | None = None
    step_rel_std: float | None = None
    sync_s: float | None = None
    memory_bytes: float | None = None
    status: str | None = None
    quality: str | None = None
    trained: bool = True
    """False: its log shows no step at all, so what it held is no peak, and that it was started does not say that it fits."""
    peers_s: Mapping[str, float] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    """`gpu_mean` as a share of 1, and those of the twelve resource numbers that stand in the row."""

    @property
    def scores_time(self) -> bool:
        """Rows without a judgement count as good."""
        return self.step_s is not None and self.step_s > 0 and self.quality in (None, "clean")

    @property
    def scores_memory(self) -> bool:
        return (
            self.memory_bytes is not None
            and self.memory_bytes > 0
            and self.status == "ok"
            and self.quality != "suspect"
            and self.trained
        )

    @property
    def scores_fit(self) -> bool:
        return (
            self.status in ("ok", "oom", "failed")
            and self.quality != "suspect"
            and (self.trained or self.status != "ok")
        )


CASE_KINDS: dict[str, type] = {
    name: next(iter(typing.get_args(hint)), hint)
    for name, hint in typing.get_type_hints(Case).items()
    if name != "asked"
}
"""The type of each column."""
ASKED_COLUMNS = {item.name: item for item in QUESTION_FIELDS if item.name not in CASE_KINDS}
"""Whatever else a question may say can be a column of its own name."""


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Every row of a table as it stands in the file, or a table of raw steps as cases; the suffix says how to read it."""
    place = Path(path)
    if not place.is_file():
        raise InvalidInput(f"there is no case table {place}; give a .parquet or .csv file")
    suffix = place.suffix.lower()
    if suffix == ".parquet":
        rows = _read_parquet(place)
    elif suffix in (".csv", ".tsv"):
        rows = _read_csv(place)
    else:
        raise InvalidInput(f"{place} ends in {place.suffix or 'nothing'!r}; case tables end in .parquet or .csv")
    if not rows:
        raise InvalidInput(f"{place} has no rows")
    rows = _name_columns(rows)
    if is_step_table(rows[0]):
        rows = [as_case_row(row) for row in rows]
    for name in REQUIRED:
        if name not in rows[0]:
            raise InvalidInput(f"{place} has no column {name!r}{did_you_mean(name, map(str, rows[0]))}")
    return rows


def _name_columns(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Headings with spaces around them or other capitals mean the column of that name, where it is not there itself."""
    known = {name.lower(): name for name in CASE_KINDS}
    renamed: dict[str, str] = {}
    for heading in map(str, rows[0]):
        plain = known.get(heading.strip().lower(), heading.strip())
        if plain != heading and plain not in rows[0]:
            renamed[heading] = plain
    if not renamed:
        return rows
    return [{renamed.get(name, name): value for name, value in row.items()} for row in rows]


def keep_sources(rows: Sequence[dict[str, Any]], sources: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of some sources; all rows where none is named."""
    if not sources:
        return list(rows)
    known = sorted({str(row.get("source")) for row in rows if row.get("source")})
    for name in sources:
        if name not in known:
            raise UnknownName("source", name, known)
    return [row for row in rows if row.get("source") in sources]


def hide_results(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows without anything that was measured, judged or predicted by others."""

    def known_before(name: str) -> bool:
        return not name.startswith((MEASURED_PREFIX, PEER_PREFIX)) and name not in JUDGEMENTS

    return [{name: value for name, value in row.items() if known_before(name)} for row in rows]


def parse_case(row: Row) -> Case:
    """One row as a case; a value that does not fit its column is an error naming both."""
    if SURPLUS in row:
        raise InvalidInput(f"the line has {row[SURPLUS]} more cells than the table has columns")
    values = {name: _convert(row[name], kind, name) for name, kind in CASE_KINDS.items() if name in row}
    for name in REQUIRED:
        if values.get(name) is None:
            raise InvalidInput(f"the row has no {name}")
    if values.get("framework"):
        values["framework"] = name_framework(values["framework"])
    asked = {name: _convert(row[name], item.kind, name) for name, item in ASKED_COLUMNS.items() if name in row}
    return Case(**values, asked=tuple((name, value) for name, value in asked.items() if value is not None))


def name_framework(spelling: str) -> str:
    """A framework by the name of its stack, whatever its capitals: 'FSDP2 v2.6.1' is fsdp2@2.6. Versions of plain PyTorch, which
    differ in more than their number, stay as they are spelt."""
    name = name_stack(spelling)
    if name is None or name == PLAIN:
        return spelling
    version = version_in(spelling)
    return f"{name}@{version}" if version else name


def parse_observation(row: Row) -> Observation:
    """The measured half of a row; what is not there stays None."""

    def number(name: str) -> float | None:
        value: float | None = _convert(row.get(name), float, name)
        return value

    def text(name: str) -> str | None:
        value: str | None = _convert(row.get(name), str, name)
        return value

    peers = {
        name.removeprefix(PEER_PREFIX).removesuffix("_s"): number(name) for name in row if name.startswith(PEER_PREFIX)
    }
    numbers = {name: number(f"measured_{name}") for name in MEASURED_NUMBERS}
    busy_percent = number("measured_gpu_util_pct")
    if busy_percent is not None:
        numbers["gpu_mean"] = busy_percent / 100
    return Observation(
        case_id=text("case_id") or "",
        step_s=number("measured_step_s"),
        step_rel_std=number("measured_step_rel_std"),
        sync_s=number("measured_sync_s"),
        memory_bytes=number("measured_memory_bytes"),
        status=text("measured_status"),
        quality=text("quality"),
        trained=not (text("quality_reason") or "").startswith(UNTRAINED),
        peers_s={name: value for name, value in peers.items() if value is not None},
        numbers={name: value for name, value in numbers.items() if value is not None},
    )


def _convert(value: Any, kind: type, name: str) -> Any:
    """A cell as its column's type. Empty text and NaN mean unknown; an infinite number is an error."""
    if isinstance(value, str):
        value = value.strip()
    if value is None or (isinstance(value, str) and value in UNKNOWN_WORDS):
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    if kind is str:
        return _text_of(value)
    if kind is bool:
        return _truth_of(value, name)
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} is {str(value)[:40]!r}; it must be a number") from error
    if math.isnan(number):
        return None
    if math.isinf(number):
        raise InvalidInput(f"{name} is {value}; it must be finite")
    if kind is int:
        if not number.is_integer():
            raise InvalidInput(f"{name} is {value}; it must be a whole number")
        return int(number)
    return number


def _text_of(value: Any) -> str:
    # A csv reader elsewhere may have turned the placement "34" into the number 34.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _truth_of(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "1": True, "1.0": True, "yes": True, "false": False, "0": False, "0.0": False, "no": False}
    word = str(value).strip().lower()
    if word not in words:
        raise InvalidInput(f"{name} is {str(value)[:40]!r}; it must be true or false")
    return words[word]


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "tables", "reading parquet (csv needs nothing)") from error
    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(f"{path} is not a readable parquet file: {error}") from error
    return rows


def _read_csv(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text: {error}") from error
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, delimiter=_find_delimiter(text))
        # Surplus cells of a ragged line land under the key None, missing ones hold None: the former break the row.
        return [_check_ragged(row) for row in reader]
    except csv.Error as error:
        raise InvalidInput(f"{path} is not a readable csv file: {error}") from error


def _find_delimiter(text: str) -> str:
    """What parts the headings: spreadsheets also write semicolons and tabs."""
    headings = text.partition("\n")[0]
    return max((",", ";", "\t"), key=headings.count)


def _check_ragged(row: dict[Any, Any]) -> dict[str, Any]:
    surplus = row.pop(None, None)
    if surplus:
        row[SURPLUS] = len(surplus)
    return row


@noun
class Measured:
    """A case with its measured step: what a method that learns may be given."""

    case: Case
    step_s: float

    def __post_init__(self) -> None:
        if not (self.step_s > 0 and math.isfinite(self.step_s)):
            raise InvalidInput(f"case {self.case.case_id} has a measured step of {self.step_s} s; it must be above 0")
