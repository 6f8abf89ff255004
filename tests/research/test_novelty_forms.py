"""Forms of what novelty adds are chosen by a rule."""

from research.studies.novelty_forms import Score, Summary, choose, summarize


def score(held: float, winkler: float, number: int = 60) -> Score:
    return Score(num_rows=number, winkler=winkler, held=held, width=0.5)


def test_a_form_that_holds_a_large_group_too_seldom_is_not_chosen() -> None:
    summaries = {"narrow": Summary.of([score(0.7, 0.5)]), "wide": Summary.of([score(0.95, 1.0)])}
    assert choose(summaries) == "wide"


def test_the_form_that_holds_most_groups_as_it_says_is_chosen_and_of_equal_ones_the_narrower() -> None:
    summaries = {
        "narrow": Summary.of([score(0.86, 0.5)]),
        "aimed": Summary.of([score(0.9, 1.0)]),
        "aimed and wider": Summary.of([score(0.91, 1.2)]),
    }
    assert choose(summaries) == "aimed"


def test_a_publisher_has_no_say_in_its_own_form() -> None:
    groups = {("x", "device", "s"): score(0.5, 9.0), ("y", "device", "s"): score(0.9, 1.0)}
    assert summarize({"a": groups}, without="x")["a"].least == 0.9
