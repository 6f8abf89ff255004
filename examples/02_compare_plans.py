"""The same job under several plans: which are legal, which fit, which is fastest."""

from traincast import Job, Parallelism, catalog, forecast
from traincast.errors import IllegalPlan

GLOBAL_BATCH = 64
cluster = catalog.cluster(device="a100-80g", nodes=2, devices_per_node=8)
graph = catalog.workload("gpt2-xl", batch=1, seq=1024, precision="bf16", attention="flash")

rows = []
for tensor in (1, 2, 4, 8, 16):
    for pipeline in (1, 2, 4, 7):
        for recompute in ("none", "full"):
            data = cluster.num_devices // (tensor * pipeline)
            if data < 1:
                continue
            plan = Parallelism(
                data=data,
                tensor=tensor,
                pipeline=pipeline,
                micro_batches=GLOBAL_BATCH // data,
                recompute=recompute,
                zero=1,
            )
            try:
                answer = forecast(Job(graph=graph), cluster, plan)
            except IllegalPlan as refusal:
                print(f"data {data} x tensor {tensor} x pipeline {pipeline}: {refusal}")
                continue
            rows.append((answer.step.seconds, data, tensor, pipeline, recompute, answer.memory.fits))

for step_s, data, tensor, pipeline, recompute, fits in sorted(rows)[:8]:
    verdict = "fits" if fits else "does not fit"
    print(
        f"{step_s * 1e3:8.0f} ms  data {data:2d} x tensor {tensor} x pipeline {pipeline}  recompute {recompute:4s}  {verdict}"
    )
