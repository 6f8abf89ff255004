import pytest

from traincast.catalog import link, links, make_link
from traincast.catalog._links import link_entry
from traincast.catalog._names import load_facts
from traincast.errors import InvalidInput, UnknownName
from traincast.spec import Link

PCIE = Link(name="pcie4-x16", bytes_per_s=31.508e9, latency_s=5e-6, kind="pcie")


def test_every_promised_kind_of_link_is_known() -> None:
    kinds = {each.kind for each in links()}
    assert {"nvlink", "nvswitch", "pcie", "infiniband", "roce", "ethernet-tcp", "efa", "xgmi", "ici"} <= kinds


def test_every_link_has_a_rate_a_latency_and_a_source() -> None:
    for name in load_facts("link").entries:
        entry = link_entry(name)
        assert 1e8 <= entry.link.bytes_per_s < 1e13, name
        assert 0 < entry.link.latency_s < 1e-3, name
        assert entry.link.source, name
        assert entry.confidence in {"high", "medium", "low"}, name
        assert entry.latency_confidence in {"high", "medium", "low"}, name
        assert entry.scope in {"device", "port", "node"}, name


@pytest.mark.parametrize(
    "family",
    [
        ("nvlink1", "nvlink2", "nvlink3", "nvlink4", "nvlink5", "nvlink6"),
        ("pcie1-x16", "pcie2-x16", "pcie3-x16", "pcie4-x16", "pcie5-x16", "pcie6-x16"),
        ("infiniband-sdr", "infiniband-qdr", "infiniband-fdr", "infiniband-edr", "infiniband-hdr", "infiniband-ndr"),
        ("ethernet-1g", "ethernet-10g", "ethernet-25g", "ethernet-100g", "ethernet-400g"),
    ],
)
def test_each_generation_is_faster_than_the_one_before(family: tuple[str, ...]) -> None:
    rates = [link(name).bytes_per_s for name in family]
    assert rates == sorted(set(rates))


def test_ethernet_by_name_carries_the_bits_of_its_name() -> None:
    for gigabits in (1, 10, 25, 40, 50, 100, 200, 400):
        assert link(f"ethernet-{gigabits}g").bytes_per_s == gigabits * 1e9 / 8


@pytest.mark.parametrize(
    ("spelling", "name"),
    [("ndr", "infiniband-ndr"), ("IB-HDR", "infiniband-hdr"), ("pcie4", "pcie4-x16"), ("25gbe", "ethernet-25g")],
)
def test_common_spellings_of_links_are_understood(spelling: str, name: str) -> None:
    assert link(spelling).name == name


@pytest.mark.parametrize("text", ["8x infiniband-ndr", "8xinfiniband-ndr", "8 x ndr", "8*ndr"])
def test_a_count_multiplies_ports_but_not_latency(text: str) -> None:
    one, eight = link("infiniband-ndr"), link(text)
    assert eight.bytes_per_s == 8 * one.bytes_per_s
    assert eight.latency_s == one.latency_s
    assert eight.name == "8x infiniband-ndr"


def test_no_ports_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no ports"):
        link("0x infiniband-ndr")


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("100 Gb/s", 12.5e9), ("100Gbps", 12.5e9), ("300GB/s", 300e9), ("12.5 GB/s", 12.5e9), ("800Mbit/s", 1e8)],
)
def test_a_rate_in_words_tells_bits_from_bytes(text: str, bytes_per_s: float) -> None:
    made = make_link(text, like=PCIE)
    assert made.bytes_per_s == pytest.approx(bytes_per_s)
    assert made.latency_s == PCIE.latency_s


def test_a_rate_or_a_table_takes_the_rest_from_the_usual_link() -> None:
    assert make_link(5e9, like=PCIE) == make_link({"bytes_per_s": 5e9, "source": "given"}, like=PCIE)
    assert make_link({"bytes_per_s": 5e9, "latency_s": 1e-6}, like=PCIE).latency_s == 1e-6
    assert make_link(PCIE, like=link("nvlink4")) is PCIE


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf"), True, None, "0 Gb/s", "1.2.3 Gb/s", [1]])
def test_a_bad_rate_is_refused(bad: object) -> None:
    with pytest.raises(InvalidInput):
        make_link(bad, like=PCIE)  # type: ignore[arg-type]


def test_a_misspelt_key_of_a_link_is_named() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'latency_s'"):
        make_link({"bytes_per_s": 1e9, "latency": 1e-6}, like=PCIE)


def test_an_unknown_link_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match="did you mean 'nvlink4'"):
        link("nvlnk4")
