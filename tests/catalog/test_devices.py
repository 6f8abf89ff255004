import csv
import math
from pathlib import Path

import pytest

from traincast.catalog import device, device_entry, devices, link, usual_node_size
from traincast.catalog._devices import DeviceEntry, _check_keys
from traincast.catalog._names import load_facts, squeeze
from traincast.errors import InvalidInput, UnknownName
from traincast.spec import Device
from traincast.units import GIB

FACTS = load_facts("device").entries
NAMES = tuple(FACTS)


def names_with(*figures: str) -> list[str]:
    return [name for name, facts in FACTS.items() if all(facts.get(figure) is not None for figure in figures)]


GPU_IDS = Path(__file__).resolve().parents[3] / "shared" / "cases" / "gpu_ids.csv"

# fp16 flop per SM and clock of the matrix units, by prefix of the architecture; GeForce and a few boards run at half.
FP16_PER_SM_AND_CLOCK = {
    "Volta": 1024,
    "Turing": 1024,
    "Ampere GA100": 2048,
    "Ampere GA10": 1024,
    "Ada": 1024,
    "Hopper": 4096,
    "Blackwell GB10": 8192,
    "Blackwell GB20": 1024,
}


def entries() -> list[DeviceEntry]:
    return [device_entry(name) for name in NAMES]


def test_there_are_accelerators_of_every_promised_family() -> None:
    accelerators = [each for each in devices() if not each.name.startswith("cpu")]
    architectures = {each.architecture.split()[0] for each in accelerators if each.vendor == "NVIDIA"}
    assert {"Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell"} <= architectures
    for name in ("mi100", "mi355x", "tpu-v2", "tpu-v6e", "gaudi2", "gaudi3", "rtx-4090", "cpu"):
        assert device(name).name == name


RENTED_IN_2026 = {
    # short name: dense bf16 TFLOP/s of the vendor's sheet (matrix units, sums in fp32)
    "h200": 989, "b200": 2250, "b300": 2250, "gb200": 2500, "gb300": 2500, "h20": 148, "l4": 121, "l40s": 362, "rtx-4090": 165,
    "rtx-5090": 210, "rtx-6000-ada": 364, "rtx-pro-6000": 504, "rtx-pro-6000-maxq": 439, "a10g": 70, "mi250x": 192,
    "mi300x": 1307, "mi325x": 1307, "mi355x": 2517, "gaudi2": 432, "gaudi3": 1677, "trainium1": 190, "trainium2": 667,
    "trainium3": 671, "tpu-v4": 275, "tpu-v5e": 197, "tpu-v5p": 459, "tpu-v6e": 918, "tpu-v7": 2307, "b60": 98,
}  # fmt: skip
UNPUBLISHED = ("trainium", "tpu-v5", "tpu-v6", "tpu-v7")
"""Vendors that do not say the power and the cache of a chip; unknown is not zero."""


@pytest.mark.parametrize("short", RENTED_IN_2026)
def test_what_users_rent_in_2026_has_dense_rates_power_cache_links_and_a_source(short: str) -> None:
    found = device(short)
    assert found.matrix_flop_per_s["bf16"] == pytest.approx(RENTED_IN_2026[short] * 1e12, rel=0.01)
    assert found.vector_flop_per_s["fp32"] > 0
    assert found.memory_bytes > 0
    assert found.memory_bytes_per_s > 0
    for wide, short_format in (("bf16", "fp8"), ("fp8", "fp4")):
        # A sheet that prints rates with sparsity would show twice as much again.
        if {wide, short_format} <= found.matrix_flop_per_s.keys():
            assert 1.0 <= found.matrix_flop_per_s[short_format] / found.matrix_flop_per_s[wide] <= 4.0
    assert found.link_bytes_per_s or found.pcie_bytes_per_s
    assert found.source
    if not short.startswith(UNPUBLISHED):
        assert found.power_watts
        assert found.l2_bytes


def test_every_gpu_id_of_the_case_tables_is_a_name() -> None:
    if not GPU_IDS.exists():
        pytest.skip(f"{GPU_IDS} is absent: the case tables are not part of the repository")
    with GPU_IDS.open() as lines:
        rows = list(csv.DictReader(lines))
    assert rows
    for row in rows:
        found = device_entry(row["gpu"])
        assert found.device.name == row["gpu"]
        assert found.device.vendor == row["vendor"]
        if row["memory_gb_nominal"]:
            assert found.nominal_memory_bytes / GIB == pytest.approx(float(row["memory_gb_nominal"]), rel=0.01)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("A100-SXM4-80GB", "a100-sxm4-80g"),
        ("a100-80g", "a100-sxm4-80g"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40g"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80g"),
        ("a100_sxm_80gb", "a100-sxm4-80g"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80g"),
        ("NVIDIA H100 PCIe", "h100-pcie-80g"),
        ("NVIDIA GH200 480GB", "gh200-96g"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144g"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32g"),
        ("Tesla T4", "t4"),
        ("Tesla K80", "k80-1die"),
        ("4090", "rtx-4090"),
        ("GeForce RTX 4090", "rtx-4090"),
        ("rtx3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 2080 with Max-Q Design", "rtx-2080-maxq"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", "rtx-3080-laptop"),
        ("1080 Ti", "gtx-1080ti"),
        ("RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("Quadro RTX 6000", "quadro-rtx-6000"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("AMD Instinct MI300X", "mi300x"),
        ("TPU v4", "tpu-v4"),
        ("RTX3090-24GB", "rtx-3090"),
        ("QuadroRTX8000-48GB", "quadro-rtx-8000"),
        ("RTX 4090 (24 GB)", "rtx-4090"),
        ("K80-12GB", "k80-1die"),
    ],
)
def test_common_spellings_are_understood(spelling: str, name: str) -> None:
    assert device(spelling).name == name


def test_a_memory_that_the_device_is_not_sold_with_is_another_device() -> None:
    with pytest.raises(UnknownName):
        device("RTX3090-12GB")


@pytest.mark.parametrize(
    ("short", "name"),
    [
        ("a100", "a100-sxm4-40g"),
        ("h100", "h100-sxm-80g"),
        ("h200", "h200-sxm-141g"),
        ("v100", "v100-sxm2-16g"),
        ("p100", "p100-pcie-16g"),
        ("b200", "b200-sxm-180g"),
        ("gb200", "gb200-186g"),
        ("mi250", "mi250-1gcd"),
        ("k80", "k80-1die"),
        ("3080", "rtx-3080-10g"),
    ],
)
def test_an_ambiguous_short_name_is_the_documented_variant(short: str, name: str) -> None:
    assert device(short).name == name
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "catalog.md"
    assert f"| `{short}` | `{name}` |" in page.read_text()


@pytest.mark.parametrize("kind", ["device", "link", "node", "dataset"])
def test_no_spelling_means_two_entries(kind: str) -> None:
    meanings: dict[str, str] = {}
    for name, entry in load_facts(kind).entries.items():
        for spelling in (name, *entry.get("aliases", ())):
            assert meanings.setdefault(squeeze(spelling), name) == name, spelling


@pytest.mark.parametrize("lacking", ["vendor", "sources", "typical_node", "memory_bytes"])
def test_a_block_that_lacks_a_key_is_answered_with_the_keys_that_are_needed(lacking: str) -> None:
    facts = {key: value for key, value in FACTS["t4"].items() if key != lacking}
    with pytest.raises(
        InvalidInput, match=f"device 'mine' of the catalogue lacks {lacking}; a device needs title, vendor"
    ):
        _check_keys("mine", facts)


def test_a_typical_node_that_lacks_a_key_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"lacks typical_node\.intra, typical_node\.inter, sources\.\*;"):
        _check_keys("mine", {**FACTS["t4"], "typical_node": {"devices_per_node": 1}, "sources": {}})


def test_an_unknown_device_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match=r"unknown device 'b20'.*did you mean 'b200'"):
        device("b20")


def test_a_device_of_the_users_own_passes_through() -> None:
    own = Device(name="mine", memory_bytes=1e9, memory_bytes_per_s=1e9, vector_flop_per_s={"fp32": 1e9})
    assert device(own) is own


@pytest.mark.parametrize("name", names_with("num_sm", "lanes_per_sm", "clock_hz"))
def test_the_vector_rate_is_lanes_times_clock(name: str) -> None:
    facts = FACTS[name]
    derived = 2 * facts["num_sm"] * facts["lanes_per_sm"] * facts["clock_hz"]
    assert device(name).vector_flop_per_s["fp32"] == pytest.approx(derived, rel=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_matrix_units_are_never_slower_than_vector_lanes(name: str) -> None:
    chip = device(name)
    for dtype, rate in chip.matrix_flop_per_s.items():
        assert rate >= 0.999 * chip.vector_flop_per_s.get(dtype, 0.0), dtype


@pytest.mark.parametrize("name", NAMES)
def test_a_narrower_number_is_never_slower_on_matrix_units(name: str) -> None:
    rates = device(name).matrix_flop_per_s
    for widths in (("fp64", "fp16"), ("fp32", "tf32", "fp16", "fp8", "fp4"), ("tf32", "bf16", "fp8", "fp4")):
        known = [rates[dtype] for dtype in widths if dtype in rates]
        assert known == sorted(known), widths


def fp16_by_rule(name: str) -> float | None:
    """What the architecture gives; None without a rule, or where the maker has capped the rate (H20)."""
    facts = FACTS[name]
    per_clock = next(
        (n for prefix, n in FP16_PER_SM_AND_CLOCK.items() if facts["architecture"].startswith(prefix)), None
    )
    if per_clock is None or name == "h20-sxm-96g" or "num_sm" not in facts or "clock_hz" not in facts:
        return None
    return float(facts["num_sm"] * per_clock * facts["clock_hz"])


@pytest.mark.parametrize("name", [name for name in NAMES if fp16_by_rule(name) is not None])
def test_matrix_rates_follow_the_rule_of_the_architecture(name: str) -> None:
    share = device(name).matrix_flop_per_s["fp16"] / (fp16_by_rule(name) or math.nan)
    # Sheets of Hopper and Blackwell quote the matrix peak at a lower clock than the vector peak.
    assert 0.85 < share < 1.03 or 0.48 < share < 0.52


@pytest.mark.parametrize("name", names_with("memory_bus_bits", "memory_pin_bits_per_s"))
def test_bandwidth_is_bus_width_times_pin_rate(name: str) -> None:
    derived = FACTS[name]["memory_bus_bits"] * FACTS[name]["memory_pin_bits_per_s"] / 8
    assert device(name).memory_bytes_per_s == pytest.approx(derived, rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_programs_get_a_little_less_memory_than_is_sold(name: str) -> None:
    entry = device_entry(name)
    assert 0.9 * entry.nominal_memory_bytes < entry.device.memory_bytes <= entry.nominal_memory_bytes
    if entry.reported_memory_bytes is not None:
        assert entry.device.memory_bytes <= entry.reported_memory_bytes


def test_every_device_has_plausible_figures() -> None:
    for entry in entries():
        chip = entry.device
        assert 2012 <= (chip.year or 0) <= 2026, chip.name
        assert "fp32" in chip.vector_flop_per_s, chip.name
        for amount in (chip.power_watts, chip.l2_bytes, chip.link_bytes_per_s, chip.pcie_bytes_per_s, chip.clock_hz):
            assert amount is None or (amount > 0 and math.isfinite(amount)), chip.name
        if chip.vendor == "NVIDIA":
            assert chip.l2_bytes is not None, chip.name
            assert chip.power_watts is not None, chip.name
        if chip.clock_hz is not None:
            assert 0.5e9 < chip.clock_hz < 4e9, chip.name
        # Flop per byte of memory traffic: a slipped prefix leaves this range.
        balance = (chip.peak_flop_per_s("bf16") or chip.peak_flop_per_s("fp32") or 0.0) / chip.memory_bytes_per_s
        assert 5 < balance < 800, chip.name


def test_every_figure_has_a_source_and_a_confidence() -> None:
    for entry in entries():
        assert entry.device.confidence in {"high", "medium", "low"}
        assert entry.source_of("memory_bytes")
        assert entry.source_of("memory_bytes_per_s")
        assert entry.device.source


def test_two_dies_on_one_board_are_listed_one_by_one() -> None:
    for name, board_memory_gib in (("k80-1die", 24), ("m60-1die", 16), ("mi250-1gcd", 128), ("mi250x-1gcd", 128)):
        assert device_entry(name).nominal_memory_bytes == board_memory_gib / 2 * GIB


def test_typical_nodes_name_known_links_that_are_no_faster_than_the_device() -> None:
    for entry in entries():
        typical = entry.typical_node
        intra = link(typical.intra)
        assert link(typical.inter).bytes_per_s > 0
        assert typical.devices_per_node >= 1
        ports = max(entry.device.link_bytes_per_s or 0.0, entry.device.pcie_bytes_per_s or 0.0)
        if intra.kind not in {"memory", "cpu"}:
            assert intra.bytes_per_s <= ports * 1.001, entry.device.name


def test_a_core_is_slower_than_its_server() -> None:
    core, server = device("cpu"), device("cpu-avx512-generic")
    assert core.num_sm == 1
    assert core.vector_flop_per_s["fp32"] < server.vector_flop_per_s["fp32"]
    assert core.memory_bytes_per_s < server.memory_bytes_per_s


@pytest.mark.parametrize(
    ("name", "count", "each"),
    [
        ("rtx-4090", 8, 8), ("rtx-4090", 16, 8), ("gtx-1080ti", 4, 4), ("l40s", 8, 8), ("a100-pcie-80g", 32, 4),
        ("h100", 16, 8), ("h100", 11, 11), ("gb200", 64, 4), ("gh200-96g", 8, 1), ("rtx-3080-laptop", 2, 1),
    ],
)  # fmt: skip
def test_boards_that_are_counted_share_a_server_though_most_stand_alone(name: str, count: int, each: int) -> None:
    assert usual_node_size(name, count) == each
