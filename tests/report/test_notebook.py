import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from builders import make_cluster, make_mlp
from traincast.forecast import forecast
from traincast.spec import Estimate, Job, Parallelism
from traincast.spec import _display as display


class Balanced(HTMLParser):
    """Fails on a tag that is not closed, and collects what a person reads."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.tags: set[str] = set()
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.seen.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.seen)


def test_a_forecast_shows_step_interval_memory_and_where_it_goes() -> None:
    answer = forecast(Job(graph=make_mlp(), steps=100), make_cluster(), draw=True)
    html = answer._repr_html_()
    assert html is not None
    page = Balanced(html)
    for wanted in ("90% interval", "memory", "100 steps", "slowest tasks", "aten.mm"):
        assert wanted in page.text, wanted


def test_a_timeline_is_drawn() -> None:
    html = forecast(Job(graph=make_mlp()), make_cluster(), draw=True).timeline._repr_html_()
    assert html is not None
    assert "svg" in Balanced(html).tags


def test_a_graph_shows_its_kinds_and_parameters() -> None:
    html = make_mlp(layers=3)._repr_html_()
    assert html is not None
    page = Balanced(html)
    assert "matmul" in page.text
    assert f"{make_mlp(layers=3).num_parameters:,} parameters" in page.text


def test_a_plan_and_a_search_show_themselves() -> None:
    from traincast.plan._nouns import Candidate, Plan, Search

    cluster = make_cluster()
    answer = forecast(Job(graph=make_mlp(), steps=10), cluster)
    candidate = Candidate(cluster=cluster, parallelism=Parallelism(), batch=32)
    plan = Plan(candidate=candidate, forecast=answer, deadline_probability=0.93)
    shown = plan._repr_html_()
    assert shown is not None
    assert "probability 0.93" in Balanced(shown).text
    found = Search(plans=(plan,), front=(plan,), num_plans=7, num_evaluated=3, num_pruned=4)
    listed = found._repr_html_()
    assert listed is not None
    assert "1 plans of 7" in Balanced(listed).text


def test_names_cannot_smuggle_markup_into_the_page() -> None:
    answer = forecast(Job(graph=replace(make_mlp(), name="<script>x</script>")), make_cluster())
    for noun in (answer, replace(make_mlp(), name="<img src=x>")):
        html = noun._repr_html_()
        assert html is not None
        assert not {"script", "img"} & Balanced(html).tags


def test_the_nouns_import_no_presenter_until_a_notebook_asks() -> None:
    import subprocess

    code = "import sys, traincast.spec; sys.exit('traincast.report._notebook' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_a_presenter_the_text_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "PRESENTER", "traincast.report.absent")
    assert make_mlp()._repr_html_() is None


def test_a_noun_without_a_presenter_is_shown_as_text() -> None:
    assert display.show_html(Estimate(seconds=1, low_s=1, high_s=1)) is None
