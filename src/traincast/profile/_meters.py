"""The driver of a GPU to readings of its utilisation, memory traffic and memory, beside the counters of the network.

NVIDIA's and AMD's own libraries are called directly (NVML, ROCm SMI), so nothing has to be installed with the package. Where
neither is there, only the network is read. Drivers that fail once are not asked again.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from traincast.noun import noun
from traincast.profile._resources import network_bytes

INTERVAL_S = 0.1
"""Drivers renew their utilisation every 20 to 170 ms; more readings would show the same."""
MOST_READINGS = 20_000
"""Kept between two takings; beyond it every other reading is dropped."""


@noun
class MeterReading:
    """One look at one device and its node. Shares are of 1; None: the driver does not say."""

    at_s: float
    busy: float | None = None
    memory_busy: float | None = None
    """Share of time in which the device's memory was read or written."""
    used_bytes: float | None = None
    sent_bytes: float = 0.0
    received_bytes: float = 0.0


class DeviceMeter(Protocol):
    """One device of one driver."""

    def read(self) -> tuple[float | None, float | None, float | None]:
        """Busy, memory busy, used bytes."""
        ...


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class NvmlMeter:
    """A device of NVIDIA's driver."""

    def __init__(self, library: Any, *, index: int = 0, uuid: str | None = None) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        _check(library.nvmlInit_v2())
        if uuid is not None:
            name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
            _check(library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(self._handle)))
        else:
            _check(library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(self._handle)))

    def read(self) -> tuple[float | None, float | None, float | None]:
        rates, memory = _Rates(), _Memory()
        told = self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(rates)) == 0
        held = self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)) == 0
        return (
            rates.gpu / 100 if told else None,
            rates.memory / 100 if told else None,
            float(memory.used) if held else None,
        )


class RocmMeter:
    """A device of AMD's driver."""

    def __init__(self, library: Any, *, index: int = 0) -> None:
        self._library = library
        self._index = ctypes.c_uint32(index)
        _check(library.rsmi_init(ctypes.c_uint64(0)))
        self.read()

    def read(self) -> tuple[float | None, float | None, float | None]:
        busy, memory_busy, used = ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_uint64()
        library, index = self._library, self._index
        told = library.rsmi_dev_busy_percent_get(index, ctypes.byref(busy)) == 0
        moved = library.rsmi_dev_memory_busy_percent_get(index, ctypes.byref(memory_busy)) == 0
        # Memory of type 0 is the device's own.
        held = library.rsmi_dev_memory_usage_get(index, ctypes.c_int(0), ctypes.byref(used)) == 0
        return (
            busy.value / 100 if told else None,
            memory_busy.value / 100 if moved else None,
            float(used.value) if held else None,
        )


class MeterError(OSError):
    """A driver that is there and does not answer."""


def _check(code: int) -> None:
    if code != 0:
        raise MeterError(f"the driver answers with error {code}")


DRIVERS: tuple[tuple[tuple[str, ...], Callable[..., DeviceMeter]], ...] = (
    (("libnvidia-ml.so.1", "libnvidia-ml.so", "nvml.dll"), NvmlMeter),
    (("librocm_smi64.so.7", "librocm_smi64.so.6", "librocm_smi64.so"), RocmMeter),
)


def find_meter(
    *, index: int = 0, uuid: str | None = None, load: Callable[[str], Any] = ctypes.CDLL
) -> DeviceMeter | None:
    """The meter of a device by its driver; None where there is none that answers. `index`: among those this process sees."""
    for names, make in DRIVERS:
        for name in names:
            try:
                library = load(name)
            except OSError:
                continue
            try:
                if make is NvmlMeter:
                    return NvmlMeter(library, index=physical_index(index, "CUDA_VISIBLE_DEVICES"), uuid=uuid)
                return make(library, index=physical_index(index, "HIP_VISIBLE_DEVICES"))
            except (OSError, AttributeError):
                break
    return None


def physical_index(index: int, variable: str) -> int:
    """Drivers count all devices of a node, processes those that they are shown."""
    shown = [word.strip() for word in os.environ.get(variable, "").split(",")]
    return int(shown[index]) if index < len(shown) and shown[index].isdigit() else index


class DeviceSampler:
    """Reads a meter and the network beside a training, in a thread of its own."""

    def __init__(
        self,
        meter: DeviceMeter | None,
        *,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._meter = meter
        self._interval_s = interval_s
        self._clock = clock
        self._readings: list[MeterReading] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True, name="traincast-meter")
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
            self._thread = None

    def look(self) -> None:
        """One reading, now."""
        busy = memory_busy = used = None
        if self._meter is not None:
            try:
                busy, memory_busy, used = self._meter.read()
            except (OSError, ValueError):
                self._meter = None
        sent, received = network_bytes()
        found = MeterReading(
            at_s=self._clock(), busy=busy, memory_busy=memory_busy, used_bytes=used, sent_bytes=sent,
            received_bytes=received,
        )  # fmt: skip
        with self._lock:
            self._readings.append(found)
            if len(self._readings) > MOST_READINGS:
                del self._readings[1::2]

    def take(self) -> list[MeterReading]:
        """The readings since the last taking; the last of them begins the next stretch."""
        with self._lock:
            taken = self._readings
            self._readings = taken[-1:]
        return taken

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._stop.wait(self._interval_s)
