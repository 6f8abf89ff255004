"""What Python prints is what the command prints, and a question in words is the question of the command."""

import pytest

from traincast import forecast
from traincast.__main__ import main
from traincast.errors import InvalidInput


def test_the_text_of_a_forecast_is_that_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forecast", "gpt2", "--gpus", "8xa100-80g", "--tokens", "1B", "--color", "never"]) == 0
    printed = capsys.readouterr().out
    answer = forecast("gpt2", "8xa100-80g", tokens="1B", draw=True)
    assert str(answer) == printed
    undrawn = str(forecast("gpt2", "8xa100-80g", tokens="1B"))
    assert "Largest costs" in undrawn


def test_words_of_a_question_reach_every_part_of_it() -> None:
    answer = forecast("gpt2", "2x4xa100-80g", zero=1, batch=4, seq="512", steps="10k", precision="bf16")
    assert answer.settings["seq"] == 512
    assert answer.job.num_steps == 10_000
    assert answer.num_devices == 8
    assert answer.origin.resolved.parallelism.zero == 1


def test_a_word_that_no_question_has_is_refused() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'tokens'"):
        forecast("gpt2", "8xa100-80g", token="1B")
