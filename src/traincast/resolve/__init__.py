"""A question to a job, a cluster and a plan: words, defaults, framework, cluster, and the model to its graph."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.resolve._data import read_lengths, without_data
    from traincast.resolve._defaults import (
        HALVES,
        find_training,
        is_saved,
        most_samples,
        reads_text,
        usual_global_batch,
        with_defaults,
    )
    from traincast.resolve._habits import OLDER_WORDS, UNKNOWN, plan_habits, usual_bucket
    from traincast.resolve._place import build_cluster, place
    from traincast.resolve._plan import AXES, complete_plan, is_open
    from traincast.resolve._precision import fit_precision
    from traincast.resolve._question import fill_in
    from traincast.resolve._recorded import record_any_batch
    from traincast.resolve._regimes import REGIME_FIELDS, Load, pose_regime, spell_out
    from traincast.resolve._resolve import Completed, Prepared, Resolved, complete, describe_settings, prepare
    from traincast.resolve._source import find_length, load_model
    from traincast.resolve._stack import choose_stack
    from traincast.resolve._target import train_to_target
    from traincast.resolve._words import (
        ask_in_words,
        describe_cluster,
        is_hardware,
        read_amount,
        read_hardware,
        write_command,
    )

__getattr__ = load_lazily(__name__)
