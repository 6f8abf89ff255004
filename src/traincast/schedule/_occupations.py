"""Who held which GPUs when, as columns: one entry for every run of a job between start and stop."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from traincast.schedule._jobs import Floats, Ints
from traincast.spec import Occupation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Occupations(Sequence[Occupation]):
    """Reads like a list of `Occupation`; a million of them are five arrays.

    The nodes of entry i are `nodes[first[i] : first[i + 1]]`, with the GPUs held there in `counts`.
    """

    jobs: Ints
    start_s: Floats
    end_s: Floats
    num_gpus: Floats
    first: Ints
    nodes: Ints
    counts: Floats

    @classmethod
    def collect(cls, entries: Sequence[Occupation]) -> "Occupations":
        if isinstance(entries, Occupations):
            return entries
        sizes = [len(entry.nodes) for entry in entries]
        pairs = [pair for entry in entries for pair in entry.nodes]
        return cls(
            jobs=np.array([entry.job for entry in entries], dtype=np.int64),
            start_s=np.array([entry.start_s for entry in entries], dtype=np.float64),
            end_s=np.array([entry.end_s for entry in entries], dtype=np.float64),
            num_gpus=np.array([entry.num_gpus for entry in entries], dtype=np.float64),
            first=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            nodes=np.array([node for node, _ in pairs], dtype=np.int64),
            counts=np.array([count for _, count in pairs], dtype=np.float64),
        )

    def __len__(self) -> int:
        return len(self.jobs)

    @overload
    def __getitem__(self, index: int) -> Occupation: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Occupation]: ...

    def __getitem__(self, index: int | slice) -> Occupation | Sequence[Occupation]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        low, high = int(self.first[at]), int(self.first[at + 1])
        return Occupation(
            job=int(self.jobs[at]),
            start_s=float(self.start_s[at]),
            end_s=float(self.end_s[at]),
            num_gpus=float(self.num_gpus[at]),
            nodes=tuple(zip(self.nodes[low:high].tolist(), self.counts[low:high].tolist(), strict=True)),
        )

    def __iter__(self) -> Iterator[Occupation]:
        return (self[at] for at in range(len(self)))

    @property
    def entry_of_node(self) -> Ints:
        """The entry to which every node in `nodes` belongs."""
        return np.repeat(np.arange(len(self)), np.diff(self.first))
