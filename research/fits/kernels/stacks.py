"""`python -m research.fits.kernels.stacks`: whole steps by source with the shipped constants of their stacks, with factors on
kernels and links set to 1 and the host's constants kept, and with a neutral stack; what a refit of stacks has left to explain."""

import sys
from collections.abc import Callable

import numpy as np

from research.fits.kernels.steps import CASES, Step, read_step_rows
from traincast.cost.learned import load_learned
from traincast.cost.pricing import Pricing
from traincast.cost.stack import Stack, load_stacks, stack, with_constants
from traincast.errors import TraincastError
from traincast.forecast import forecast

NEUTRAL = {"product_factor": 1.0, "memory_factor": 1.0, "intra_factor": 1.0, "inter_factor": 1.0}
KERNELS_NEUTRAL = {"product_factor": 1.0, "memory_factor": 1.0}
SOURCES = ("llm_foundry", "megatron_bridge", "megatron_seqsel", "torchtitan", "vtrain_multi")


def shipped(step: Step) -> Stack:
    name = step.question.job.stack
    return stack(name) if name in load_stacks() else Stack()


CHOICES: dict[str, Callable[[Step], Stack]] = {
    "shipped": shipped,
    "kernels neutral": lambda step: with_constants(shipped(step), KERNELS_NEUTRAL),
    "kernels and links neutral": lambda step: with_constants(shipped(step), NEUTRAL),
    "neutral": lambda _step: Stack(),
}


def main() -> None:
    ops = load_learned()
    steps = [step for step in read_step_rows(CASES) if step.source in SOURCES]
    for source in SOURCES:
        part = [step for step in steps if step.source == source]
        for title, choose in CHOICES.items():
            errors = []
            for step in part:
                asked = step.question
                try:
                    answer = forecast(
                        asked.job, asked.cluster, asked.parallelism, costs=Pricing(ops=ops, stack=choose(step))
                    )
                except TraincastError:
                    continue
                errors.append(answer.step.seconds / step.measured_s - 1.0)
            size = np.abs(errors)
            sys.stdout.write(
                f"{source:18} {title:26} n {len(errors):4}  mean {size.mean():6.1%}  median {np.median(size):6.1%}"
                f"  bias {np.median(errors):+6.1%}\n"
            )


if __name__ == "__main__":
    main()
