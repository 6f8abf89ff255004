"""Names of optional packages to the packages; a package that is broken is the environment's error, and not ours."""

import importlib
import importlib.util
from typing import Any

from traincast.errors import CaptureFailed, MissingExtra


def need(package: str, *, extra: str, purpose: str) -> Any:
    try:
        return importlib.import_module(package)
    except Exception as error:
        if isinstance(error, ImportError) and not _is_installed(package):
            raise MissingExtra(package.partition(".")[0], extra, purpose) from error
        reason = " ".join(str(error).split())[:200]
        raise CaptureFailed(
            f"{purpose} needs {package}, which is installed but cannot be imported here: {type(error).__name__}: {reason}; "
            f"repair the environment, for example with pip install --force-reinstall 'traincast[{extra}]'"
        ) from error


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
