"""Known names to devices, links, nodes, clusters, data sets and workloads, each with its source."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

__all__ = [
    "cluster", "cluster_from", "device", "device_entry", "devices", "from_shape",
    "link", "links", "make_link", "node", "nodes", "workload", "workloads",
]  # fmt: skip

if TYPE_CHECKING:
    from traincast.catalog._constants import read_constant_table, read_constants
    from traincast.catalog._datasets import usual_dataset
    from traincast.catalog._devices import device, device_entry, devices, usual_node_size
    from traincast.catalog._kernels import kernel_rules
    from traincast.catalog._links import link, links, make_link
    from traincast.catalog._models.recipe import BLOCK_SCALED, FUSED_ATTENTIONS, PRECISIONS, precision_name
    from traincast.catalog._models.styles import STYLES
    from traincast.catalog._names import load_facts
    from traincast.catalog._nodes import (
        Quote,
        cluster,
        cluster_from,
        is_current,
        list_quotes,
        node,
        nodes,
        usual_threads,
    )
    from traincast.catalog._records import KINDS, entry_names, find_record, kind_of, list_records, plural_kind
    from traincast.catalog._regions import find_region, region
    from traincast.catalog._stacks import (
        LogFacts,
        find_stack,
        large_stack,
        log_facts,
        name_stack,
        plain_stack,
        read_stack,
        stack,
        stack_names,
        version_in,
        with_version,
    )
    from traincast.catalog._targets import target_of
    from traincast.catalog._trainings import Training, training_of
    from traincast.catalog._workloads import (
        from_shape,
        has_varying_inputs,
        name_style,
        named_shape,
        read_image_size,
        style_of_task,
        usual_length,
        workload,
        workloads,
    )

__getattr__ = load_lazily(__name__)
