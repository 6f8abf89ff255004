"""The uncertainty of a forecast: what is new about a question to an interval, to reasons, and to what would narrow it."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.certainty._arbitrate import Answer, choose_answer, is_plainly_replicated
    from traincast.certainty._certainty import describe_setting, hopeful_memory_errors, memory_errors
    from traincast.certainty._gaussian_process import ErrorProcess, Shares, condition, nearest, prove
    from traincast.certainty._interval import (
        GIVEN_JOB,
        SURE,
        Assured,
        Tally,
        tally_program,
        with_interval,
        with_novelty,
    )
    from traincast.certainty._labels import label_run
    from traincast.certainty._pooling import apply_numbers

__getattr__ = load_lazily(__name__)
