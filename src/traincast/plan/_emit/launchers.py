"""A recipe to files of launchers and trainers: a torchrun script, or the configuration of a project."""

from collections.abc import Callable

from traincast.configs import write_config
from traincast.plan._emit.recipe import Recipe, export_lines, torchrun_line


def emit_torchrun(recipe: Recipe) -> str:
    """A script to be started on every node with HEAD_NODE (and NODE_RANK) set."""
    lines = [
        "#!/bin/bash",
        f"# {recipe.says}.",
        "# Start it on every node; HEAD_NODE is the name of the first.",
        "set -euo pipefail",
        "",
        *export_lines(recipe),
        "",
        f"timeout {recipe.limit_s} "
        + torchrun_line(recipe, host="${HEAD_NODE:-localhost}", extra=('--node-rank="${NODE_RANK:-0}"',)),
    ]
    return "\n".join(lines) + "\n"


def emit_config(name: str) -> Callable[[Recipe], str]:
    """Who writes the configuration of a project; the forecast stands above it where the file may hold comments."""

    def emit(recipe: Recipe) -> str:
        text = write_config(
            recipe.question, recipe.plan, name, num_nodes=recipe.num_nodes, devices_per_node=recipe.per_node
        )
        if text.startswith("{"):
            return text
        first, _, rest = text.partition("\n")
        head = f"# {recipe.says}.\n"
        return f"{first}\n{head}{rest}" if first.startswith("#!") else head + text

    return emit
