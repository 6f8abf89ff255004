"""A job at every provider: dates, terms, interruptions and checkpoints, CO2 by region."""

import datetime
import math
from pathlib import Path

import pytest

from traincast.catalog import find_region, list_quotes, region
from traincast.errors import InvalidInput
from traincast.forecast import answer
from traincast.plan import decide, price_everywhere, read_prices
from traincast.report import format_prices
from traincast.report._prices import describe_range
from traincast.spec import Question, WorkloadOptions

TODAY = datetime.date(2026, 11, 17)
SPOT = """
[[prices]]
machine = "aws-p5.48xlarge"
terms = "spot"
usd_per_hour = 25.0
region = "us-east-1"
date = "2026-11-01"
source = "our account"
interruptions_per_day = {interruptions}

[[regions]]
name = "us-east"
grams_co2_per_kwh = 400
"""


@pytest.fixture(scope="module")
def job():  # type: ignore[no-untyped-def]
    question = Question(
        source="gpt2", workload=WorkloadOptions(batch=8, precision="bf16", seq=1024), job={"steps": 100_000},
        cluster={"device": "h100", "nodes": 1, "devices_per_node": 8}, parallelism={"data": 8},
    )  # fmt: skip
    resolved = decide(question)
    return answer(resolved), resolved


def prices_of(job, path: Path, interruptions: float):  # type: ignore[no-untyped-def]
    path.write_text(SPOT.format(interruptions=interruptions))
    found, resolved = job
    return price_everywhere(found, resolved.job, resolved.cluster, prices=read_prices(path), today=TODAY)


def test_every_provider_has_its_own_price_date_and_source(job) -> None:  # type: ignore[no-untyped-def]
    found, resolved = job
    prices = price_everywhere(found, resolved.job, resolved.cluster, today=TODAY)
    assert len({each.quote.provider for each in prices}) >= 5
    assert all(each.quote.date and each.quote.source for each in prices)
    assert [each.usd for each in prices] == sorted(each.usd for each in prices)
    assert {each.is_stale for each in prices} == {True, False}
    assert all(each.is_stale == ((TODAY - datetime.date.fromisoformat(each.quote.date)).days > 90) for each in prices)
    text = format_prices(prices)
    assert "older than 90 days" in text
    assert prices[0].quote.provider in describe_range(prices)
    old = [each.quote.provider for each in prices if each.quote.date < "2026"]
    assert old
    assert not any(provider in describe_range(prices) for provider in old)


def test_a_spot_job_pays_for_what_is_taken_away(job, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "prices.toml"
    hours = [
        next(each for each in prices_of(job, file, rate) if each.quote.terms == "spot").hours for rate in (0, 1, 4)
    ]
    assert hours[0] == pytest.approx(job[0].job.total.seconds / 3600)
    assert hours[0] < hours[1] < hours[2]


def test_checkpoints_are_as_far_apart_as_loses_least(job, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    spot = next(each for each in prices_of(job, tmp_path / "prices.toml", 2) if each.quote.terms == "spot")
    _, resolved = job
    graph = resolved.job.graph
    write_s = (
        graph.role_bytes("parameter") + graph.role_bytes("optimizer_state")
    ) / resolved.job.checkpoint_bytes_per_s
    rate = 2 / 86400

    def lost(every_s: float) -> float:
        return write_s / every_s + rate * every_s / 2

    assert spot.checkpoint_every_s is not None
    assert lost(spot.checkpoint_every_s) <= min(lost(spot.checkpoint_every_s * f) for f in (0.5, 0.9, 1.1, 2.0))


def test_co2_is_energy_times_what_the_region_burns_and_unknown_where_nobody_knows(job, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    prices = prices_of(job, tmp_path / "prices.toml", 0)
    spot = next(each for each in prices if each.quote.terms == "spot")
    assert spot.kg_co2 == pytest.approx(job[0].energy_joules / 3.6e6 * 0.4)
    assert find_region("aws", "mars-north-1") is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[[prices]]\nmachine = 'aws-p5.48xlarge'\n", "lacks usd_per_hour"),
        ("[[prices]]\nmachine = 'aws-p5.48xlarge'\nusd_per_hour = -1\n", "at least 0"),
        ("[[prices]]\nmachine = 'aws-p5.48xlarge'\nusd_per_hour = 1\nterms = 'cheap'\n", "on-demand, spot, reserved"),
        ("[[prices]]\nmachine = 'aws-p5.48xlarge'\nusd_per_hour = 1\ndate = 'May'\n", "2026-11-17"),
        ("[[offers]]\n", "no prices"),
    ],
)
def test_a_price_list_that_cannot_be_read_says_what_is_allowed(tmp_path: Path, text: str, wanted: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=wanted):
        read_prices(file)


def test_the_catalogue_prices_by_devices_what_no_machine_has() -> None:
    whole, half = (list_quotes("h100-sxm-80g", devices_per_node=count) for count in (8, 4))
    assert whole[0].usd_per_hour > half[0].usd_per_hour
    assert math.isfinite(whole[0].usd_per_hour)


def test_co2_follows_the_region_of_the_provider_and_of_ones_own_cluster(job) -> None:  # type: ignore[no-untyped-def]
    found, resolved = job
    assert found.kg_co2 is None
    prices = price_everywhere(found, resolved.job, resolved.cluster, today=TODAY)
    by_region = {each.quote.region: each.kg_co2 for each in prices}
    assert 0 < by_region["eu-north1"] < by_region["us-ashburn-1"] < by_region["us-central1"]

    def ask(region: str):  # type: ignore[no-untyped-def]
        asked = Question(
            source="gpt2", workload=WorkloadOptions(batch=8, precision="bf16", seq=1024), job={"steps": 100_000},
            cluster={"device": "h100", "nodes": 1, "devices_per_node": 8, "region": region}, parallelism={"data": 8},
        )  # fmt: skip
        return answer(decide(asked))

    france, poland = ask("france"), ask("POL")
    kwh = found.energy_joules / 3.6e6
    assert france.energy_joules == found.energy_joules
    assert france.kg_co2.value == pytest.approx(kwh * region("france").grams_co2_per_kwh / 1000)
    assert france.kg_co2.low < france.kg_co2.value < france.kg_co2.high
    assert poland.kg_co2.value > 8 * france.kg_co2.value
    with pytest.raises(InvalidInput, match="atlantis"):
        ask("atlantis")


def test_the_catalogue_holds_reserved_prices_beside_those_on_demand() -> None:
    quotes = list_quotes("a10g", devices_per_node=8)
    asked = {(quote.machine, quote.terms): quote for quote in quotes}
    reserved, on_demand = asked["aws-g5.48xlarge", "reserved"], asked["aws-g5.48xlarge", "on-demand"]
    assert 0.5 < reserved.usd_per_hour / on_demand.usd_per_hour < 0.7
    assert reserved.date < on_demand.date
    assert "one-year" in reserved.source
    assert [quote.usd_per_hour for quote in quotes] == sorted(quote.usd_per_hour for quote in quotes)
