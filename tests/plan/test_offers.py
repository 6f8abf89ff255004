"""Price lists, sizes, spaces and single changes."""

import json
from pathlib import Path

import pytest

import traincast
from plan.models import pose_transformer
from traincast import Parallelism, catalog
from traincast.errors import IllegalPlan, InvalidInput
from traincast.plan import Space, plan
from traincast.plan._offers import Wanted, catalogue_offers, check_regions, offer_of, read_offers, size_offers
from traincast.plan._space import Shape, list_plans
from traincast.plan._what_if import what_if
from traincast.spec import Question, WorkloadOptions

REQUEST = Question(source="gpt2", workload=WorkloadOptions(seq=512, precision="bf16"), job={"steps": 100})
NARROW = Space(
    global_batch=16, batches=(2,), tensor=(1,), context=(1,), pipeline=(1,), recompute=("none",), zero=(0, 1)
)


def test_plan_is_a_public_verb() -> None:
    assert traincast.plan is plan


def test_every_catalogue_offer_is_one_priced_node() -> None:
    offers = catalogue_offers()
    assert len(offers) > 50
    assert all(offer.node.num_nodes == 1 and offer.node.usd_per_hour is not None for offer in offers)


def test_offers_grow_to_every_allowed_size_and_no_other() -> None:
    offer = offer_of(catalog.cluster("aws-p4d.24xlarge", nodes=4))
    chosen = size_offers([offer], Wanted(min_devices=16, max_devices=100))
    assert [cluster.num_nodes for cluster in chosen.clusters] == [2, 3, 4, 6, 8, 12]
    assert chosen.clusters[0].usd_per_hour == pytest.approx(2 * offer.node.usd_per_hour)
    none = size_offers([offer], Wanted(devices=("t4",)))
    assert none.clusters == ()
    assert none.left_out == {"device": 1}
    assert size_offers([offer], Wanted(node_counts=(5,))).clusters[0].num_devices == 40


def test_a_price_list_is_read_and_mistakes_in_it_are_named(tmp_path: Path) -> None:
    file = tmp_path / "offers.json"
    good = {"node": "aws-p4d.24xlarge", "usd_per_hour": 3.5, "region": "here", "max_nodes": 2}
    file.write_text(json.dumps({"offers": [good]}))
    (offer,) = read_offers(file)
    assert (offer.node.usd_per_hour, offer.region, offer.max_nodes) == (3.5, "here", 2)
    check_regions([offer], ["he"])
    with pytest.raises(InvalidInput, match="no offer is in the region"):
        check_regions([offer], ["mars"])
    for bad, wanted in (
        ({"offers": []}, "no list 'offers'"),
        ({"offers": [7]}, "must be a table"),
        ({"offers": [{**good, "nodes": 2}]}, "an offer is one node"),
        ({"offers": [{**good, "max_nodes": "two"}]}, "whole number"),
        ({"offers": [{**good, "colour": "red"}]}, "unknown key 'colour'"),
    ):
        file.write_text(json.dumps(bad))
        with pytest.raises(InvalidInput, match=wanted):
            read_offers(file)


def test_every_plan_of_a_space_uses_all_devices_and_keeps_the_samples_of_a_step() -> None:
    shape = Shape.of(pose_transformer(layers=6, experts=4)(1, Parallelism()).graph)
    plans = list(list_plans(Space(global_batch=24), 16, 8, shape))
    assert len(plans) > 100
    for batch, found in plans:
        assert found.num_devices == 16
        assert batch * found.micro_batches * found.data == 24
        assert found.tensor in (1, 2, 4, 8)
    assert {found.expert for _, found in plans} == {1, 2, 4}
    assert len({(batch, repr(found)) for batch, found in plans}) == len(plans)


def test_a_change_keeps_the_samples_of_a_step_or_says_why_it_cannot() -> None:
    (best, *_) = plan(REQUEST, catalog.cluster("aws-p4d.24xlarge", nodes=1), space=NARROW)
    for change in ("tensor=2", "nodes=2", "device=h100-80g", "batch=1", "inter=100Gb/s", "compiled=true"):
        assert what_if(best, REQUEST, change).after.global_batch == 16, change
    assert what_if(best, REQUEST, "price=1.0").usd_ratio < 1
    assert what_if(best, REQUEST, "steps=200").job_ratio > 1
    with pytest.raises(IllegalPlan, match="cannot be split"):
        what_if(best, REQUEST, "tensor=3")
    with pytest.raises(InvalidInput, match="unknown key"):
        what_if(best, REQUEST, "colour=red")
    assert best.parallelism == Parallelism(data=8, zero=best.parallelism.zero)
