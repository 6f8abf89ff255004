"""Results as frames: by one call each, with a library only where one is asked for."""

import pytest

from traincast import forecast
from traincast.errors import InvalidInput
from traincast.plan import search_plans
from traincast.report import make_frame
from traincast.report._frames import list_rows
from traincast.resolve import ask_in_words, build_cluster


@pytest.fixture(scope="module")
def answer():  # type: ignore[no-untyped-def]
    return forecast("gpt2", "2xa100-80g", batch=4, steps=1000, draw=True)


@pytest.fixture(scope="module")
def found():  # type: ignore[no-untyped-def]
    question = ask_in_words("gpt2", "2xa100-80g", steps=1000, batch=4, pipeline=1, tensor=1)
    return search_plans(question, build_cluster(question), top=3)


def test_rows_have_units_in_their_names_and_plain_numbers(answer, found) -> None:  # type: ignore[no-untyped-def]
    (row,) = list_rows(answer)
    assert row["step_s"] == answer.step.seconds
    rows = list_rows(found)
    assert len(rows) >= 3
    assert {"zero", "batch", "usd", "fit_probability"} <= rows[0].keys()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_has_a_line_for_each_plan(library: str, found) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip(library)
    frame = make_frame(found, library=library)
    assert frame.shape[0] == len(list_rows(found))
    assert "step_s" in frame.columns
    assert found.frame(library=library).shape == frame.shape


def test_an_unknown_library_is_refused(answer) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput, match="pandas, polars"):
        make_frame(answer, library="excel")
