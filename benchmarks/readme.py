"""README.md to the same README with the output of its commands as they answer now: python benchmarks/readme.py."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"<!-- (\d+) lines -->\n```console\n\$ (traincast [^\n]+)\n.*?```", re.DOTALL)
OWN_MODEL = """
import torch


def build():
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
    return torch.nn.TransformerEncoder(layer, num_layers=24), lambda batch: (torch.randn(batch, 512, 1024),)
"""


def run(command: str, folder: Path) -> str:
    words = [sys.executable, "-m", *shlex.split(command)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True, env=environment)
    return done.stdout


def main() -> None:
    readme = ROOT / "README.md"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "my_model.py").write_text(OWN_MODEL)

        def answer(found: re.Match[str]) -> str:
            count, command = int(found[1]), found[2]
            lines = run(command, Path(folder)).rstrip().splitlines()
            shown = [line[:160].rstrip() for line in lines[:count]]
            more = ["..."] if len(lines) > count else []
            text = "\n".join([*shown, *more])
            return f"<!-- {count} lines -->\n```console\n$ {command}\n{text}\n```"

        readme.write_text(BLOCK.sub(answer, readme.read_text()))


if __name__ == "__main__":
    main()
