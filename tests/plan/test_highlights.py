"""What is best at something is compared with the plan that comes first."""

from traincast import catalog
from traincast.plan import search_plans
from traincast.plan._highlights import highlight
from traincast.spec import Question, WorkloadOptions

TWO = catalog.cluster("aws-p4d.24xlarge", nodes=1)


def _last_ratio(**job: object) -> tuple[float, float]:
    """(ratio of times that is said, ratio of steps) of the slowest plan that was found beside the fastest."""
    question = Question(source="gpt2", workload=WorkloadOptions(), job={"global_batch": 64, **job})
    found = search_plans(question, TWO, top=20)
    slow = max(found.plans, key=lambda each: each.forecast.step.seconds)
    fastest = next(each for each in highlight(found, slow) if "fastest" in each.title)
    return fastest.ratios["time"], fastest.plan.forecast.step.seconds / slow.forecast.step.seconds


def test_plans_of_a_question_without_a_length_are_compared_by_their_steps() -> None:
    said, steps = _last_ratio()
    assert abs(said / steps - 1) < 0.02


def test_plans_of_a_whole_job_are_compared_by_its_time_with_its_start() -> None:
    said, steps = _last_ratio(steps=1000)
    assert said > steps
