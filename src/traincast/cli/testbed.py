"""`traincast testbed`: builds a cluster of network namespaces on this machine and runs real training on it."""

# ruff: noqa: PT028 (the command is called testbed; it is no test function)
from typing import TYPE_CHECKING, Annotated

import typer

from traincast.cli.options import Json

if TYPE_CHECKING:
    from traincast.profile import EmulatedNode

ACTIONS = ("up", "down", "run", "show")


def testbed(
    action: Annotated[str, typer.Argument(help=f"{', '.join(ACTIONS)}.", show_default=False)],
    script: Annotated[
        list[str] | None,
        typer.Argument(
            help="Of run, after --: the training script and its arguments, started by torchrun.", show_default=False
        ),
    ] = None,
    name: Annotated[str, typer.Option("--name", "-n", help="Of the test-bed; small letters and digits.")] = "bed",
    nodes: Annotated[int, typer.Option("--nodes", help="Number of nodes.")] = 2,
    rate: Annotated[
        list[str] | None, typer.Option("--rate", help="Link rate, such as 1gbit; once, or once per node.")
    ] = None,
    latency: Annotated[
        list[str] | None, typer.Option("--latency", help="One-way latency, such as 1ms; once or per node.")
    ] = None,
    share: Annotated[
        list[float] | None, typer.Option("--share", help="CPU share in cores; once, or once per node.")
    ] = None,
    timeout: Annotated[str | None, typer.Option("--timeout", help="Of run: stop it after this time.")] = None,
    json: Json = False,
) -> None:
    """Run real distributed training on an emulated cluster. Needs root.

    `traincast testbed run --nodes 3 --rate 1gbit -- train.py --steps 10` builds it, runs the script on every node by
    torchrun, and takes it down. `up` and `down` keep one between runs: `run --name NAME` then uses it.
    """
    from traincast.cli.output import say
    from traincast.errors import UnknownName
    from traincast.files import encode
    from traincast.profile import EmulatedCluster, down, load, require_root, up
    from traincast.report import format_json

    if action not in ACTIONS:
        raise UnknownName("action", action, ACTIONS)
    require_root()
    answer: dict[str, object] = {"name": name}
    if action == "up":
        cluster = EmulatedCluster(name=name, nodes=_nodes(nodes, rate, latency, share))
        up(cluster)
        answer["nodes"] = [
            {"namespace": cluster.namespace(each), "address": cluster.address(each)} for each in range(nodes)
        ]
    elif action == "down":
        answer["removed"] = down(name)
    elif action == "show":
        answer.update(encode(load(name)))
    else:
        answer["exit_code"] = _run(name, script or [], _nodes(nodes, rate, latency, share), timeout)
    say(format_json(answer) if json else ", ".join(f"{key}: {value}" for key, value in answer.items()))
    if answer.get("exit_code"):
        raise typer.Exit(1)


def _nodes(
    count: int, rates: list[str] | None, latencies: list[str] | None, shares: list[float] | None
) -> "tuple[EmulatedNode, ...]":
    from traincast.profile import EmulatedNode, parse_rate
    from traincast.units import parse_seconds

    rate_of = _spread([parse_rate(text) for text in rates or ["1gbit"]], count, "--rate")
    latency_of = _spread([parse_seconds(text) for text in latencies or ["0"]], count, "--latency")
    share_of = _spread(shares or [0.25], count, "--share")
    return tuple(
        EmulatedNode(bits_per_s=bits, latency_s=seconds, cpu_share=cores)
        for bits, seconds, cores in zip(rate_of, latency_of, share_of, strict=True)
    )


def _spread(values: list[float], count: int, option: str) -> list[float]:
    from traincast.errors import InvalidInput

    if len(values) not in (1, count):
        raise InvalidInput(f"{option} is given {len(values)} times for {count} nodes; give it once or once per node")
    return values * count if len(values) == 1 else values


def _run(name: str, script: list[str], nodes: "tuple[EmulatedNode, ...]", timeout: str | None) -> int:
    from traincast.errors import InvalidInput
    from traincast.profile import EmulatedCluster, emulated, load, run_torchrun
    from traincast.units import parse_seconds

    if not script:
        raise InvalidInput("say what to run: traincast testbed run ... -- train.py ARGUMENTS")
    timeout_s = parse_seconds(timeout) if timeout else None
    try:
        cluster = load(name)
    except InvalidInput:
        with emulated(EmulatedCluster(name=name, nodes=nodes)) as built:
            return run_torchrun(built, script, timeout_s=timeout_s)
    return run_torchrun(cluster, script, timeout_s=timeout_s)
