"""Draws the pictures of resources.md: python docs/theory/draw_resources.py"""

from pathlib import Path

from traincast import catalog
from traincast.catalog import workload
from traincast.files import write_whole
from traincast.forecast import forecast
from traincast.report import Lane, draw_lanes
from traincast.resources import FLOORS, WINDOWS_PER_STEP, from_pieces, repeat, sample, summarize, trace_levels
from traincast.spec import RESOURCES, Job, Parallelism

HERE = Path(__file__).parent


def draw_definition() -> str:
    """A made-up signal of three steps of 1 s, and what a sampler of 20 Hz makes of it."""
    pieces = [(0.23, 0.42, 0.9), (0.45, 0.71, 1.0), (0.71, 0.83, 0.4)]
    exact = repeat(from_pieces(pieces, duration_s=1.0), 3)
    sampled = sample(exact, window_s=0.05)
    lane = Lane(resource="gpu", exact=exact, sampled=sampled, activity=summarize(sampled, num_cycles=3))
    return draw_lanes([lane], title="Three steps of 1 s: true level (grey), samples at 20 Hz (green), bursts (shaded)")


def draw_step() -> str:
    """A step of ResNet-50 on four nodes with one V100 each and a slow network."""
    cluster = catalog.cluster(device="v100-sxm2-16g", nodes=4, devices_per_node=1, inter="ethernet-10g")
    graph = workload("resnet50", batch=32)
    answer = forecast(Job(graph=graph), cluster, Parallelism(data=4), draw=True)
    step_s = answer.step.seconds
    levels = trace_levels(answer.timeline.spans, step_s, cluster, device=cluster.groups[0].device)
    profile = answer.resources[0]
    lanes = [
        Lane(
            resource=name,
            sampled=sample(levels[name], window_s=step_s / WINDOWS_PER_STEP),
            activity=getattr(profile, name),
            floor=FLOORS[name],
        )
        for name in RESOURCES
    ]
    return draw_lanes(lanes, title=f"One forecast step: {answer.workload}, batch 32 on each of {answer.cluster}")


if __name__ == "__main__":
    write_whole(HERE / "resources-definition.svg", draw_definition())
    write_whole(HERE / "resources-step.svg", draw_step())
