"""Fast kernels of other libraries: the document of rules by which a recording finds them."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from traincast.files import read_json


@functools.cache
def kernel_rules() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Rules by what they find: functions, modules, optimizers and operators."""
    content = read_json(Path(__file__).parent / "data" / "kernels.json")
    return {kind: tuple(content[kind]) for kind in ("functions", "modules", "optimizers", "operators")}
