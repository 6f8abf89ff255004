"""HTTP to answers: forecasts, fits, plans and schedules as JSON, with one offline page in front of them."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.service._limits import LOOPBACK as LOOPBACK
    from traincast.service._limits import Limits as Limits
    from traincast.service._limits import Settings as Settings
    from traincast.service._run import run_jobs as run_jobs
    from traincast.service._run import run_service as run_service
    from traincast.service._state import State as State
    from traincast.service._state import is_url as is_url
    from traincast.service._state import open_shared as open_shared

__getattr__ = load_lazily(
    __name__,
    {
        "_limits": (
            "LOOPBACK",
            "Limits",
            "Settings",
        ),
        "_run": (
            "run_jobs",
            "run_service",
        ),
        "_state": (
            "State",
            "is_url",
            "open_shared",
        ),
    },
)
