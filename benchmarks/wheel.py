"""The wheel to the answer of README's first question in clean environments: python benchmarks/wheel.py [pip pipx uv].

Builds the wheel, checks its size, installs it by each installer into a folder of its own and asks. Installers that are missing
are fetched into the same folder with pip.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = 15_000_000
QUESTION = "forecast llama-3-8b --gpus 8xh100 --tokens 15B"


def run(words: Sequence[str | Path], **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "PIP_"))}
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env={**kept, **environment})
    if done.returncode:
        raise SystemExit(f"{shlex.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def install(how: str, wheel: Path, folder: Path) -> Path:
    """The program as the installer leaves it."""
    if how == "pip":
        run([sys.executable, "-m", "venv", folder / "pip"])
        run([folder / "pip/bin/pip", "install", "-q", wheel])
        return folder / "pip/bin/traincast"
    tools = folder / "tools"
    if not tools.exists():
        run([sys.executable, "-m", "venv", tools])
    run([tools / "bin/pip", "install", "-q", how])
    if how == "pipx":
        home = {"PIPX_HOME": str(folder / "pipx"), "PIPX_BIN_DIR": str(folder / "pipx-bin")}
        run([tools / "bin/pipx", "install", wheel], **home)
        return folder / "pipx-bin/traincast"
    home = {
        "UV_TOOL_DIR": str(folder / "uv"),
        "UV_TOOL_BIN_DIR": str(folder / "uv-bin"),
        "UV_CACHE_DIR": str(folder / "cache"),
    }
    run([tools / "bin/uv", "tool", "install", "--python", sys.executable, wheel], **home)
    return folder / "uv-bin/traincast"


def main(installers: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT])
        (wheel,) = folder.glob("*.whl")
        size = wheel.stat().st_size
        print(f"{wheel.name}: {size / 1e6:.1f} MB")
        if size > MOST_BYTES:
            raise SystemExit(f"the wheel is larger than {MOST_BYTES / 1e6:.0f} MB")
        for how in installers or ("pip", "pipx", "uv"):
            began = time.monotonic()
            program = install(how, wheel, folder)
            installed_s, began = time.monotonic() - began, time.monotonic()
            answer = run([program, *shlex.split(QUESTION)])
            if "tokens/s" not in answer or "fits" not in answer:
                raise SystemExit(f"{how}: not the answer that README shows\n{answer}")
            print(f"{how}: installed in {installed_s:.0f} s, answered in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
