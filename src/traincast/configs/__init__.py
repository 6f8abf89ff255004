"""Configurations of other projects to questions and back; nothing in them is ever run."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.configs._logs import RunLog, is_log, read_log
    from traincast.configs._merge import merge_configs
    from traincast.configs._models import DESCRIBED
    from traincast.configs._nouns import ConfigFormat, Draft, Sheet
    from traincast.configs._read import read_config
    from traincast.configs._registry import FORMATS
    from traincast.configs._write import list_unwritten, writable, write_config, write_yaml

__getattr__ = load_lazily(__name__)
