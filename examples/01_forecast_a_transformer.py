"""How long, will it fit, what will it cost: one question, one answer."""

from traincast import Job, Parallelism, catalog, forecast
from traincast.units import show_bytes, show_seconds, show_usd

graph = catalog.workload("llama-3-8b", batch=1, seq=4096, precision="bf16", attention="flash")
job = Job(graph=graph, samples=1_000_000, checkpoint_every_steps=500)
cluster = catalog.cluster(device="h100", nodes=4, devices_per_node=8)
answer = forecast(job, cluster, Parallelism(data=4, tensor=8, micro_batches=8, zero=1, sequence_parallel=True))

print(
    f"step   {show_seconds(answer.step.seconds)} ({show_seconds(answer.step.low_s)} to {show_seconds(answer.step.high_s)})"
)
print(f"job    {show_seconds(answer.job.total.seconds)}")
memory = answer.memory
print(f"memory {show_bytes(memory.peak_bytes)} of {show_bytes(memory.capacity_bytes)}, peak at {memory.peak_at}")
print(f"cost   {show_usd(answer.usd.value) if answer.usd else 'no price known'}")
for name, share in answer.timeline.shares.items():
    print(f"  {name:14s} {share:6.1%}")
