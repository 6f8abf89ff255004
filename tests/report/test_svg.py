import dataclasses
from xml.etree import ElementTree

import pytest

from traincast.errors import InvalidInput
from traincast.report._svg import Point, draw_agreement, draw_timeline
from traincast.spec import Forecast, Span, Timeline

SVG = "{http://www.w3.org/2000/svg}"


def test_a_timeline_drawing_is_xml_with_a_box_per_span(forecast: Forecast) -> None:
    root = ElementTree.fromstring(draw_timeline(forecast.timeline, title="a <b> & c"))
    boxes = [box for box in root.iter(f"{SVG}rect") if box.find(f"{SVG}title") is not None]
    assert len(boxes) == len(forecast.timeline.spans)
    assert any(text.text == "a <b> & c" for text in root.iter(f"{SVG}text"))


def test_many_tiny_spans_are_merged_into_few_boxes() -> None:
    spans = tuple(
        Span(name=f"op{i}", start_s=i * 1e-6, end_s=(i + 1) * 1e-6, stream="compute", category="compute")
        for i in range(20000)
    )
    drawing = draw_timeline(Timeline(duration_s=0.02, spans=spans, shares={"compute": 1.0}))
    boxes = ElementTree.fromstring(drawing).iter(f"{SVG}rect")
    assert sum(1 for _ in boxes) < 2500


def test_an_empty_timeline_is_refused(forecast: Forecast) -> None:
    with pytest.raises(InvalidInput, match="no duration"):
        draw_timeline(dataclasses.replace(forecast.timeline, duration_s=0.0))


def test_agreement_draws_a_dot_per_case_inside_the_picture() -> None:
    points = [Point(measured=0.01, forecast=0.02, series="a"), Point(measured=3.0, forecast=2.5, series="b")]
    root = ElementTree.fromstring(draw_agreement(points, title="all", size=500))
    dots = [dot for dot in root.iter(f"{SVG}circle") if dot.get("r") == "2.5"]
    assert len(dots) == 2
    assert all(0 <= float(dot.get(axis, "-1")) <= 500 for dot in dots for axis in ("cx", "cy"))


def test_points_without_a_logarithm_are_refused() -> None:
    with pytest.raises(InvalidInput, match="above 0"):
        draw_agreement([Point(measured=0.0, forecast=1.0, series="a")], title="")
