from research.papers import Claim, Papers
from research.papers.compare import Chosen, Line
from research.papers.jobs import JobLine, MeasuredJob
from research.papers.report import format_papers, format_papers_markdown


def make_line(method: str, mean: float, ratio: float) -> Line:
    return Line(
        table="ablation", split="random", method=method, num_rows=1200, mean=mean, median=mean, p90=mean, max=mean,
        rmse_s=0.02, spread=0.001, ratio=ratio, rmse_ratio=1.0,
    )  # fmt: skip


def make_papers() -> Papers:
    job = MeasuredJob(name="gpt(depth=2)", batch=16, setting="4xmixed", num_steps=60, wall_s=50.0)
    return Papers(
        num_steps=1200, num_architectures=12, seeds=(0, 1, 2), cpu_s=300.0,
        claims=(
            Claim(paper="ScaleDL", what="MRE", aim=6.0, found=1.2, most=1.7),
            Claim(paper="DeletePop", what="mean accuracy", aim=0.93, found=0.96, unit="%"),
        ),
        predictddl=(), speed=None, scaledl=(), designs=(Chosen(num_measured=8, d_optimal=0.2, random=0.3, spread=0.01),),
        jobs=(JobLine(job=job, forecast_s=55.0, startup_s=30.0, step_s=0.4),),
        ablation=(make_line("default", 0.1, 1.0), make_line("without layers", 0.16, 1.6)),
    )  # fmt: skip


def test_what_is_not_reached_is_said() -> None:
    text = format_papers(make_papers())
    reached = {line.split()[0]: line for line in text.splitlines() if line.startswith(("ScaleDL ", "DeletePop "))}
    assert reached["ScaleDL"].split()[-4:] == ["1.2x", "1.7x", "not", "reached"]
    assert reached["DeletePop"].split()[-2:] == ["96.0%", "reached"]


def test_a_job_that_is_a_tenth_off_has_an_accuracy_of_ninety_percent() -> None:
    assert "90.0%" in format_papers(make_papers())


def test_tables_without_rows_are_left_out_and_a_split_is_named_once() -> None:
    text = format_papers_markdown(make_papers())
    assert "ScaleDL: each workload" not in text
    assert text.count("\n| random |") == 1
    assert "1,200 measured steps of 12 architectures, GPU steps left out: their tables are not beside" in text
    assert "(../shared); means over 3 seeds" in text
