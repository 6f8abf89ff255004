"""No framework and no data source is spelt in code: stacks are documents of the catalogue, formats have their readers."""

import io
import re
import tokenize
from pathlib import Path

import pytest

import traincast
from traincast.catalog._stacks import stacks

SOURCE = Path(traincast.__file__).parent
READERS = ("catalog", "capture", "configs", "integrate", "plan/_emit", "schedule/_formats")
"""Rooms that may name what they describe, read, adapt or write for."""
FILES = ("service/_uploads.py",)
"""Architectures of a published format."""
DATA_SOURCES = (
    "vtrain",
    "hf_ultrascale",
    "sia_",
    "lambda_v",
    "llm_foundry",
    "llm-foundry",
    "megatron_bridge",
    "neusight",
)
GENERAL = frozenset(
    [
        "pytorch",
        "torch",
        "torch.compile",
        "distributeddataparallel",
        "fully_shard",
        "eager",
        "ds",
        "tf",
        "trainer",
        "transformers",
        "fabric",
        "inductor",
        "jax",
        "xla",
        "accelerate",
        "deepspeed",
        "fsdp",
        "fsdp2",
        "ddp",
        "keras",
        "flax",
        "tensorflow",
        "huggingface",
        "lightning",
        "nemo",
    ]
)
"""Spellings that are also words of our own, packages we import or formats we read."""


def code_files() -> list[Path]:
    return [
        path
        for path in sorted(SOURCE.rglob("*.py"))
        if not path.relative_to(SOURCE).as_posix().startswith(READERS)
        and path.relative_to(SOURCE).as_posix() not in FILES
    ]


def spellings() -> set[str]:
    found = {name.lower() for stack in stacks() for name in (stack.name, *stack.aliases)}
    return {name for name in found if name not in GENERAL and len(name) > 3} | set(DATA_SOURCES)


@pytest.mark.parametrize("path", code_files(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_code_spells_no_framework_and_no_source(path: Path) -> None:
    pattern = re.compile(
        "|".join(re.escape(name) for name in sorted(spellings(), key=len, reverse=True)), re.IGNORECASE
    )
    found = [
        f"line {token.start[0]}: {token.string[:60]}"
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        if token.type in (tokenize.NAME, tokenize.STRING)
        and not token.string.startswith('"""')
        and pattern.search(token.string)
    ]
    assert found == []
