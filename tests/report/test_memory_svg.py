from xml.etree import ElementTree

import pytest

from builders import make_mlp
from traincast.errors import InvalidInput
from traincast.lower._rewrite import as_stage
from traincast.report._memory import draw_memory
from traincast.simulate import replay_memory


def test_the_drawing_names_what_lives_and_the_limit_of_the_device() -> None:
    profile = replay_memory(as_stage(make_mlp()), capacity_bytes=1e8, with_curve=True)
    drawing = draw_memory(profile, title="mlp <small>")
    words = "".join(ElementTree.fromstring(drawing).itertext())
    for wanted in ("mlp <small>", "parameter", "device", "activations", profile.peak_where):
        assert wanted in words


def test_the_curve_reaches_the_peak_and_stays_inside_the_picture() -> None:
    profile = replay_memory(as_stage(make_mlp()), capacity_bytes=1e6, with_curve=True)
    root = ElementTree.fromstring(draw_memory(profile, height=400))
    (polygon,) = root.iter("{http://www.w3.org/2000/svg}polygon")
    heights = [float(corner.split(",")[1]) for corner in polygon.attrib["points"].split()]
    assert min(heights) > 0
    assert max(heights) < 400


def test_a_profile_without_a_curve_cannot_be_drawn() -> None:
    with pytest.raises(InvalidInput, match="with_curve"):
        draw_memory(replay_memory(as_stage(make_mlp()), capacity_bytes=1e8))
