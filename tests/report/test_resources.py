"""Resource profiles as a table and as a drawing."""

from builders import make_cluster, make_mlp
from traincast.cost._pricing import Pricing
from traincast.cost._roofline import Roofline
from traincast.forecast import forecast
from traincast.report._resources import format_resources
from traincast.report._text import format_forecast
from traincast.spec import Forecast, Job, Parallelism


def make_answer(*, draw: bool = True, **plan: int) -> Forecast:
    cluster = make_cluster(nodes=Parallelism(**plan).num_devices)
    return forecast(
        Job(graph=make_mlp(layers=8)), cluster, Parallelism(**plan), costs=Pricing(ops=Roofline()), draw=draw
    )


def test_the_explanation_lists_the_four_resources_and_the_energy():
    text = format_forecast(make_answer(data=2), explain=True)
    for words in ("GPU utilisation", "GPU memory bandwidth", "network in", "network out", "energy of one device"):
        assert words in text
    assert "GPU utilisation" not in format_forecast(make_answer(data=2))


def test_a_forecast_that_was_not_drawn_says_nothing_about_resources():
    assert format_resources(make_answer(draw=False, data=2).resources) == ""


def test_of_many_stages_the_first_and_the_last_are_shown():
    text = format_resources(make_answer(pipeline=8, micro_batches=8).resources)
    assert "stage 0" in text
    assert "stage 7" in text
    assert "stage 3" not in text
