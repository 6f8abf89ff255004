"""Configurations of other projects to questions and back; nothing in them is ever run."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.configs._merge import merge_configs as merge_configs
    from traincast.configs._models import DESCRIBED as DESCRIBED
    from traincast.configs._models import find_model as find_model
    from traincast.configs._nouns import ConfigFormat as ConfigFormat
    from traincast.configs._nouns import Draft as Draft
    from traincast.configs._nouns import Reading as Reading
    from traincast.configs._nouns import Sheet as Sheet
    from traincast.configs._read import read_config as read_config
    from traincast.configs._registry import FORMATS as FORMATS
    from traincast.configs._write import LAUNCHERS as LAUNCHERS
    from traincast.configs._write import list_unwritten as list_unwritten
    from traincast.configs._write import writable as writable
    from traincast.configs._write import write_config as write_config
    from traincast.configs._write import write_yaml as write_yaml

__getattr__ = load_lazily(
    __name__,
    {
        "_merge": ("merge_configs",),
        "_models": ("DESCRIBED", "find_model"),
        "_nouns": ("ConfigFormat", "Draft", "Reading", "Sheet"),
        "_read": ("read_config",),
        "_registry": ("FORMATS",),
        "_write": ("LAUNCHERS", "list_unwritten", "writable", "write_config", "write_yaml"),
    },
)
