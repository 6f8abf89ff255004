"""How sure a forecast is, by what is new about its question."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import make_cluster, make_mlp
from traincast import catalog, forecast
from traincast.catalog._stacks import stack
from traincast.catalog._workloads import workload
from traincast.certainty._certainty import (
    FEATURES,
    KNOWN_STACK,
    MEMORY,
    Cell,
    Experience,
    Quantiles,
    Sensitivity,
    add_novelty,
    count_read,
    describe_novelty,
    describe_setting,
    feature_seconds,
    find_family,
    hopeful_memory_errors,
    list_novelty,
    load_certainty,
    loader_seconds,
    memory_errors,
    memory_sensitivity,
    mix_quantiles,
    step_sensitivity,
)
from traincast.certainty._interval import tally_program
from traincast.forecast._engine import Engine
from traincast.spec import Job, MemoryProfile, Parallelism

CERTAINTY = load_certainty()
amounts = st.lists(st.floats(0.0, 3.0), min_size=len(FEATURES), max_size=len(FEATURES))
shares = st.floats(0.0, 1.0)
PLAIN = step_sensitivity(operators=0.08, host=0.1, exposed=0.1, bandwidth=0.1)


@given(novelty=amounts, place=st.integers(0, len(FEATURES) - 1), more=st.floats(0.0, 3.0))
def test_more_that_is_new_never_makes_the_scale_smaller(novelty: list[float], place: int, more: float) -> None:
    newer = [amount + more * (index == place) for index, amount in enumerate(novelty)]
    for name in ("", *CERTAINTY.known):
        assert all(
            after >= before
            for after, before in zip(
                CERTAINTY.scales(newer, PLAIN, name), CERTAINTY.scales(novelty, PLAIN, name), strict=True
            )
        )


@given(operators=shares, host=st.floats(0.0, 1.0), exposed=shares, bandwidth=shares, more=st.floats(0.0, 1.0))
def test_a_part_that_matters_more_never_makes_the_scale_smaller(
    operators: float, host: float, exposed: float, bandwidth: float, more: float
) -> None:
    nothing = (0.0,) * len(FEATURES)

    def scales(**changed: float) -> tuple[float, float]:
        parts = {"operators": operators, "host": host, "exposed": exposed, "bandwidth": bandwidth, **changed}
        return CERTAINTY.scales(nothing, step_sensitivity(**parts))

    usual = scales()
    for name, value in (("operators", operators), ("exposed", exposed), ("bandwidth", bandwidth)):
        assert all(after >= before for after, before in zip(scales(**{name: value + more}), usual, strict=True))
    assert scales(host=min(1.0, host + more))[1] >= usual[1]


@given(novelty=amounts, coverage=st.sampled_from([0.5, 0.8, 0.9, 0.95]))
def test_the_forecast_lies_inside_its_interval_and_surer_is_wider(novelty: list[float], coverage: float) -> None:
    low, high = CERTAINTY.interval(novelty, PLAIN, coverage=coverage)
    assert low < 1 < high
    wider = CERTAINTY.interval(novelty, PLAIN, coverage=min(0.95, coverage + 0.05))
    assert wider[0] <= low
    assert high <= wider[1]


def test_sensitivities_say_how_far_a_step_moves_if_a_part_is_off() -> None:
    bound = step_sensitivity(operators=0.0, host=40.0, exposed=0.0, bandwidth=0.0, call_s=18e-6)
    # The host alone holds the step up, so the step moves as a call does.
    assert bound["host"] == pytest.approx((math.log(1.4), math.log(145 / 18)), rel=0.01)
    slow = step_sensitivity(operators=0.0, host=40.0, exposed=0.0, bandwidth=0.0, call_s=145e-6)
    # A slow framework may be faster, and no host is surer than CPUs are alike.
    assert slow["host"] == pytest.approx((math.log(5), math.log(1.4)), rel=0.01)
    hidden = step_sensitivity(operators=0.0, host=0.001, exposed=0.0, bandwidth=0.0)
    assert hidden["host"] == pytest.approx((0.0, 0.0), abs=1e-3)
    fed = step_sensitivity(operators=0.0, host=0.0, exposed=0.0, bandwidth=0.0, inputs=20.0)
    assert fed["inputs"] == pytest.approx((0.0, math.log(20) / 1.645), rel=0.01)
    waits = step_sensitivity(operators=0.0, host=0.0, exposed=1.0, bandwidth=0.0)
    assert waits["communication"] == pytest.approx((math.log(2), math.log(2)))
    looped = step_sensitivity(operators=0.0, host=0.0, exposed=0.0, bandwidth=0.0, by_data=True)
    assert looped["data"] == pytest.approx((0.0, math.log(1.5)))
    late = step_sensitivity(operators=0.0, host=0.0, exposed=0.5, bandwidth=0.0, ring_steps_per_s=1e5)
    assert late["latency"] == pytest.approx((0.0, math.log(2.7)))


def _waiting_s(seconds: Callable[..., float], job: Job, device: str = "h100-sxm-80g") -> float:
    cluster = catalog.cluster(device=device, nodes=1, devices_per_node=1)
    return seconds(job, Parallelism(), describe_setting(job, cluster, Parallelism()))


def test_a_loader_of_images_is_named_where_neither_stack_nor_user_say_that_it_keeps_up() -> None:
    images = Job(graph=workload("resnet50", batch=64))
    assert _waiting_s(loader_seconds, images) == pytest.approx(64 * 3 * 224**2 / 1.5e7 / 8, rel=0.02)
    assert _waiting_s(feature_seconds, images) == 0.0
    half = Job(graph=workload("resnet50", batch=64, precision="bf16"))
    assert _waiting_s(loader_seconds, half) == _waiting_s(loader_seconds, images)
    assert _waiting_s(loader_seconds, replace(images, loading_samples_per_s=1e4)) == 0.0
    assert _waiting_s(loader_seconds, replace(images, stack=stack("nvidia-mlperf"))) == 0.0
    words = Job(graph=workload("gpt2", batch=64))
    assert _waiting_s(loader_seconds, words) < 0.05 * _waiting_s(loader_seconds, images)
    # Fewer cores for a device; machines of the last one are not known, so nothing is said against it.
    assert _waiting_s(loader_seconds, images, "v100-sxm2-16g") > 1.5 * _waiting_s(loader_seconds, images)
    assert _waiting_s(loader_seconds, images, "a100-sxm4") == _waiting_s(loader_seconds, images)


def test_features_of_sound_are_made_in_the_loop_that_trains() -> None:
    sound = Job(graph=workload("deepspeech2", batch=8))
    assert _waiting_s(feature_seconds, sound) == pytest.approx(count_read(sound.graph) / 2.5e6 + 8 / 5e4)
    assert _waiting_s(loader_seconds, sound) == 0.0
    assert _waiting_s(feature_seconds, replace(sound, loading_samples_per_s=1e4)) == 0.0


def test_rings_between_nodes_that_kernels_wait_for_are_less_sure_than_those_inside_one() -> None:
    graph = workload("llama-3.2-1b", batch=1, precision="bf16", seq=2048)
    job = Job(graph=graph, stack=stack("large-models"))

    def ring_steps(nodes: int) -> float:
        cluster = catalog.cluster(device="h100-sxm-80g", nodes=nodes, devices_per_node=8 // nodes)
        engine, plan = Engine(), Parallelism(tensor=8, sequence_parallel=True)
        program = engine.lower(job, cluster, plan)
        return tally_program(program, engine.cost(program, job, cluster), cluster).ring_steps_per_s

    assert ring_steps(1) == 0.0
    assert ring_steps(2) > 0.0


@given(activations=shares, beside=shares, need=st.floats(0.3, 3.0), more=st.floats(1.0, 2.0))
def test_a_bound_of_a_need_is_no_less_likely_to_fit_than_what_it_bounds(
    activations: float, beside: float, need: float, more: float
) -> None:
    setting = describe_setting(Job(graph=make_mlp(), stack=stack("lightning")), make_cluster(), Parallelism())
    rest = 1.0 - min(1.0, activations)
    real = MemoryProfile(
        peak_bytes=need * more, capacity_bytes=1.0, peak_at="",
        by_role={"activation": need * more * (1 - rest), "parameter": need * more * rest * (1 - beside)},
    )  # fmt: skip
    bound = MemoryProfile(peak_bytes=need, by_role={}, peak_at="", capacity_bytes=1.0)
    real = replace(real, errors=memory_errors(setting, real))
    bound = replace(bound, errors=hopeful_memory_errors(setting, bound))
    assert bound.fit_probability >= real.fit_probability - 1e-9


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("resnet50", "convolution"),
        ("llama-3-8b", "transformer"),
        ("mixtral-8x7b", "mixture of experts"),
        ("lstm-lm", "recurrent"),
    ],
)
def test_a_family_is_found_by_what_is_computed(name: str, family: str) -> None:
    assert find_family(workload(name)) == family


def test_a_vendor_that_was_never_measured_is_said() -> None:
    cluster = make_cluster()
    odd = replace(cluster.groups[0].device, name="wafer", vendor="nobody", architecture="unheard of")
    cluster = replace(cluster, groups=(replace(cluster.groups[0], device=odd),))
    notes = " ".join(forecast(Job(graph=make_mlp()), cluster).notes)
    assert "nobody" in notes


def test_a_stack_that_was_measured_on_the_device_is_surer_than_one_that_was_not() -> None:
    cluster = catalog.cluster(device="a100-sxm4-80g", nodes=1, devices_per_node=8)
    graph = workload("gpt2", batch=8, precision="fp16")

    def width(name: str) -> float:
        step = forecast(Job(graph=graph, stack=stack(name)), cluster, Parallelism(data=8)).step
        return math.log(step.high_s / step.low_s)

    assert width("megatron-deepspeed") < width("lightning")


def test_a_new_stack_says_what_would_narrow_its_interval_and_by_how_much() -> None:
    cluster = catalog.cluster(device="h100-sxm-80g", nodes=1, devices_per_node=8)
    job = Job(graph=workload("gpt2", batch=8, precision="bf16"), stack=stack("lightning"))
    answer = forecast(job, cluster, Parallelism(data=8))
    now = (answer.step.high_s - answer.step.low_s) / answer.step.seconds
    assert answer.narrowing
    for one in answer.narrowing:
        assert one.width_now == pytest.approx(now, rel=1e-6)
        assert one.width_after < one.width_now
        assert one.seconds > 0
    said = next(note for note in answer.notes if note.startswith("90% interval"))
    assert "no run of the stack lightning was measured" in said
    assert f"-> {answer.narrowing[0].width_after:.0%} wide" in said


def test_a_step_that_waits_for_its_host_is_less_sure_where_the_stack_is_new() -> None:
    setting = describe_setting(Job(graph=make_mlp(), stack=stack("lightning")), make_cluster(), Parallelism())

    def upper(host: float) -> float:
        parts: Sensitivity = step_sensitivity(operators=0.08, host=host, exposed=0.0, bandwidth=0.0)
        return CERTAINTY.scales(list_novelty(setting, CERTAINTY.known), parts)[1]

    assert upper(1.0) > 2 * upper(0.0)


def test_a_peak_of_weights_and_state_is_surer_than_one_of_buffers() -> None:
    certainty, nothing = load_certainty(MEMORY), (0.0,) * len(FEATURES)
    scales = [
        certainty.scales(nothing, memory_sensitivity(activations=0.1, beside=beside))[1] for beside in (0.05, 0.6)
    ]
    assert scales[0] < scales[1]


def test_memory_of_a_new_stack_is_less_sure_than_that_of_one_whose_peaks_were_measured() -> None:
    cluster = catalog.cluster(device="h100-sxm-80g", nodes=1, devices_per_node=8)
    graph = workload("llama-3.2-1b", batch=1, precision="bf16", seq=4096)

    def width(name: str) -> float:
        errors = forecast(Job(graph=graph, stack=stack(name)), cluster, Parallelism(data=8)).memory.errors
        assert errors is not None
        return errors.quantile(0.95) - errors.quantile(0.05)

    assert width("nanotron") < width("lightning")


def test_the_energy_is_at_least_as_unsure_as_the_time() -> None:
    cluster = catalog.cluster(device="a100-sxm4-80g", nodes=1, devices_per_node=8)
    answer = forecast(Job(graph=workload("gpt2", batch=8), steps=100), cluster, Parallelism(data=8))
    energy, total = answer.energy_range, answer.job.total
    assert energy is not None
    assert energy.low < energy.value < energy.high
    assert energy.high / energy.low > total.high_s / total.low_s


def test_nothing_is_new_about_what_everything_was_learned_from() -> None:
    job = Job(graph=make_mlp())
    setting = describe_setting(job, make_cluster(), Parallelism())
    known = {setting.stack: replace(setting.as_experience(), log_sigma=(0.1, 0.1))}
    assert list_novelty(setting, known) == (0.0,) * len(FEATURES)


def test_a_version_of_a_measured_stack_that_was_not_measured_is_less_sure_and_said() -> None:
    place = FEATURES.index("version new to the stack")
    measured, own = next((name, one) for name, one in CERTAINTY.known.items() if one.has_scale and one.versions)
    job = Job(graph=workload("gpt2", batch=8), stack=stack(measured))
    cluster = catalog.cluster(device=min(own.devices))

    def novelty(version: str) -> float:
        asked = replace(job, stack=replace(job.stack, version=version))
        setting = describe_setting(asked, cluster, Parallelism())
        return list_novelty(setting, CERTAINTY.known)[place]

    assert novelty("99.9") == 1.0
    assert novelty("") == novelty(min(own.versions)) == 0.0
    assert min(CERTAINTY.factors[KNOWN_STACK][place]) > 0
    unmeasured = forecast(replace(job, stack=stack(f"{measured}@99.9")), cluster)
    usual = forecast(job, cluster)
    assert unmeasured.step.high_s > usual.step.high_s
    assert unmeasured.step.seconds == usual.step.seconds
    assert f"version 99.9 of {measured} was not measured" in " ".join(unmeasured.notes)


def test_an_answer_says_how_far_a_usual_loader_would_lag_and_its_interval_is_that_of_the_device() -> None:
    cluster = catalog.cluster(device="h100-sxm-80g", nodes=1, devices_per_node=8)
    images = Job(graph=workload("resnet50", batch=256, precision="bf16-amp"), stack=stack("lightning"))
    plain, fed = (
        forecast(job, cluster, Parallelism(data=8)) for job in (images, replace(images, loading_samples_per_s=1e5))
    )
    assert "the loader is taken to keep up; a usual one takes 4." in " ".join(plain.notes)
    assert "a usual one" not in " ".join(fed.notes)
    assert plain.step == fed.step


def test_a_model_of_another_size_is_new_to_a_stack_and_one_with_another_vocabulary_is_not() -> None:
    setting = describe_setting(
        Job(graph=workload("gpt2", batch=1), stack=stack("pytorch")), make_cluster(), Parallelism()
    )
    known = {setting.stack: replace(setting.as_experience(), log_sigma=(0.1, 0.1))}
    place = FEATURES.index("model new to the stack")
    larger, padded = (replace(setting, parameters=round(setting.parameters * factor)) for factor in (2.0, 1.02))
    assert list_novelty(larger, known)[place] == 1.0
    assert list_novelty(padded, known)[place] == 0.0
    assert list_novelty(replace(setting, parameters=0), known)[place] == 0.0
    said = describe_novelty(list_novelty(larger, known), larger)
    assert said == (
        f"no model of this kind with {larger.parameters / 1e6:.3g} million parameters was measured with pytorch",
    )


def test_what_is_new_adds_up_in_squares() -> None:
    factors = CERTAINTY.factors[KNOWN_STACK]
    one, other = ([float(place == chosen) for place in range(len(FEATURES))] for chosen in (1, 7))
    both = [a + b for a, b in zip(one, other, strict=True)]
    added = [sum(pair) for pair in zip(add_novelty(factors, one), add_novelty(factors, other), strict=True)]
    assert add_novelty(factors, both) == pytest.approx(added)


def test_quantiles_of_few_runs_are_wider_than_the_same_of_many() -> None:
    setting = describe_setting(Job(graph=make_mlp()), make_cluster(), Parallelism())
    pooled = CERTAINTY.quantiles[KNOWN_STACK]

    def mixed(number: int) -> Quantiles:
        cell = Cell(
            family=setting.family, architecture=setting.architecture, precision=setting.precision, octave=0,
            num_rows=number, values=(-1.0, -0.5, 0.0, 0.5, 1.0),
        )  # fmt: skip
        return mix_quantiles(pooled, Experience(log_sigma=(0.1, 0.1), num_models=5, cells=(cell,)), setting)

    few, many = mixed(20), mixed(2000)
    assert few.values[-1] == pytest.approx(1.1 * many.values[-1], rel=0.01)
    assert few.values[0] == pytest.approx(1.1 * many.values[0], rel=0.01)


def test_a_detector_under_software_that_nobody_measured_is_less_sure_because_its_host_loops_by_the_data() -> None:
    job = Job(graph=workload("maskrcnn", batch=4), stack=stack("lightning"), loading_samples_per_s=1e5)
    cluster = catalog.cluster(device="a100-sxm4-80g", nodes=1, devices_per_node=1)
    engine = Engine()
    program = engine.lower(job, cluster, Parallelism())
    assert tally_program(program, engine.cost(program, job, cluster), cluster).by_data
    assert "by the data (boxes, regions)" in " ".join(forecast(job, cluster).notes)
