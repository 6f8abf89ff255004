"""HTTP to answers: forecasts, fits, plans and schedules as JSON, with one offline page in front of them."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.service._limits import LOOPBACK, Limits, Settings
    from traincast.service._run import run_service
    from traincast.service._state import State, is_url, open_database

__getattr__ = load_lazily(__name__)
