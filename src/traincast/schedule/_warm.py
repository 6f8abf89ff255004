"""`python -m traincast.schedule._warm`: compiles the event loop into numba's cache, in a process of its own.

The compiler holds several hundred megabytes that the process which simulates then never needs.
"""

from traincast.schedule import _fast as fast
from traincast.schedule import _kernels as kernels
from traincast.schedule._generate import generate_jobs
from traincast.schedule._policies import POLICIES
from traincast.schedule._protocols import Conditions
from traincast.spec import Fleet, NodePool


def compile_events() -> None:
    loops = kernels.compiled()
    if loops is None:
        return
    given = Conditions(fleet=Fleet(pools=(NodePool(num_nodes=2, gpus_per_node=4),)))
    jobs = generate_jobs(4, num_gpus=8)
    fast.run(jobs, POLICIES["fifo"], given=given, beliefs=given.estimator.start(jobs), loops=loops, lists=False)


if __name__ == "__main__":
    compile_events()
