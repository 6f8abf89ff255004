"""Every format that configurations are read from and written in, by its name."""

from traincast.configs._documents import make_format
from traincast.configs._formats.accelerate import ACCELERATE
from traincast.configs._formats.axolotl import AXOLOTL
from traincast.configs._formats.deepspeed import DEEPSPEED
from traincast.configs._formats.hf_config import HF_CONFIG
from traincast.configs._formats.lightning import LIGHTNING
from traincast.configs._formats.litgpt import LITGPT
from traincast.configs._formats.llama_factory import LLAMA_FACTORY
from traincast.configs._formats.maxtext import MAXTEXT
from traincast.configs._formats.megatron import MEGATRON
from traincast.configs._formats.nemo import NEMO
from traincast.configs._formats.openrlhf import OPENRLHF
from traincast.configs._formats.torchtitan import REGISTRY, TORCHTITAN
from traincast.configs._formats.torchtune import TORCHTUNE
from traincast.configs._formats.trl import TRL
from traincast.configs._formats.verl import VERL
from traincast.configs._nouns import ConfigFormat
from traincast.configs._trainer import read_trainer
from traincast.registry import Registry

_HF_TRAINER = make_format("hf-trainer", read_trainer)
_OURS = (
    DEEPSPEED, ACCELERATE, TORCHTITAN, REGISTRY, MEGATRON, NEMO, AXOLOTL, _HF_TRAINER, LLAMA_FACTORY, TRL, VERL, OPENRLHF,
    TORCHTUNE, LITGPT, LIGHTNING, MAXTEXT, HF_CONFIG,
)  # fmt: skip

FORMATS: Registry[ConfigFormat] = Registry(
    kind="config format",
    entries={each.name: each for each in _OURS},
    aliases={alias: each.name for each in _OURS for alias in each.aliases},
)
"""A format by its name; another package adds one through the entry-point group `traincast.configs`."""
