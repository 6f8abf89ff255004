"""CPU seconds, memory and file size of capturing models by their configuration: python benchmarks/capture.py"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

AIM_CPU_S, AIM_RSS_BYTES, AIM_FILE_BYTES = 15.0, 1e9, 1e6

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 8192,
    "vocab_size": 128256,
}
CONFIGS = {
    "gpt2-xl": (
        {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 1600, "n_layer": 48, "n_head": 25},
        1024,
    ),
    "llama-3-8b": (
        {**LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8},
        4096,
    ),
    "llama-3-70b": (
        {**LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
         "num_key_value_heads": 8},
        4096,
    ),
}  # fmt: skip

PROGRAM = """
import json, resource, sys, time
from traincast.capture import load_source
from traincast.files import save_graph
graph = load_source(sys.argv[1], batch=1, seq=int(sys.argv[2]), precision="bf16")
save_graph(graph, sys.argv[3])
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, sum(graph.counts()), len(graph.ops)]))
"""


def main() -> None:
    print(f"{'model':<14}{'CPU s':>8}{'RSS MB':>9}{'ops':>8}{'folded':>8}{'file KB':>9}   imports included")
    with tempfile.TemporaryDirectory() as directory:
        for name, (config, seq) in CONFIGS.items():
            source, target = Path(directory) / "config.json", Path(directory) / "graph.json.gz"
            source.write_text(json.dumps(config))
            answer = subprocess.run(
                [sys.executable, "-c", PROGRAM, str(source), str(seq), str(target)],
                capture_output=True,
                text=True,
                check=True,
            )
            seconds, memory, ops, folded = json.loads(answer.stdout.splitlines()[-1])
            size = target.stat().st_size
            print(f"{name:<14}{seconds:>8.1f}{memory / 1e6:>9.0f}{ops:>8}{folded:>8}{size / 1e3:>9.1f}")
    print(f"aim for 70B: {AIM_CPU_S:.0f} CPU s, {AIM_RSS_BYTES / 1e6:.0f} MB, {AIM_FILE_BYTES / 1e3:.0f} KB")


if __name__ == "__main__":
    main()
