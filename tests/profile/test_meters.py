"""Readings of GPUs by their drivers, through libraries that answer as NVML and ROCm SMI do."""

import ctypes

import pytest

from traincast.profile._meters import DeviceSampler, NvmlMeter, RocmMeter, find_meter, physical_index
from traincast.resources import summarize_readings


class Nvml:
    """Answers as libnvidia-ml does: fills what it is pointed at and returns 0."""

    def __init__(self, *, broken: int = 0) -> None:
        self.broken = broken
        self.asked: list[object] = []

    def nvmlInit_v2(self) -> int:
        return self.broken

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: object) -> int:
        self.asked.append(index.value)
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: object) -> int:
        self.asked.append(uuid)
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: object, rates: object) -> int:
        rates._obj.gpu, rates._obj.memory = 87, 41  # type: ignore[attr-defined]
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: object, memory: object) -> int:
        memory._obj.used = 3 * 10**9  # type: ignore[attr-defined]
        return 0


class Rocm:
    def rsmi_init(self, flags: object) -> int:
        return 0

    def rsmi_dev_busy_percent_get(self, index: object, busy: object) -> int:
        busy._obj.value = 55  # type: ignore[attr-defined]
        return 0

    def rsmi_dev_memory_busy_percent_get(self, index: object, busy: object) -> int:
        return 2

    def rsmi_dev_memory_usage_get(self, index: object, kind: object, used: object) -> int:
        used._obj.value = 10**9  # type: ignore[attr-defined]
        return 0


def only(**libraries: object) -> object:
    def load(name: str) -> object:
        for part, library in libraries.items():
            if part in name:
                return library
        raise OSError(name)

    return load


def test_nvml_tells_utilisation_memory_traffic_and_memory() -> None:
    meter = find_meter(load=only(nvidia=Nvml()))  # type: ignore[arg-type]
    assert isinstance(meter, NvmlMeter)
    assert meter.read() == (0.87, 0.41, 3e9)


def test_a_device_is_found_by_its_identity_or_by_its_place_among_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    library = Nvml()
    find_meter(index=1, load=only(nvidia=library))  # type: ignore[arg-type]
    find_meter(uuid="abc", load=only(nvidia=library))  # type: ignore[arg-type]
    assert library.asked == [5, b"GPU-abc"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aa,GPU-bb")
    assert physical_index(1, "CUDA_VISIBLE_DEVICES") == 1


def test_what_amd_does_not_tell_is_not_known() -> None:
    meter = find_meter(load=only(rocm=Rocm()))  # type: ignore[arg-type]
    assert isinstance(meter, RocmMeter)
    assert meter.read() == (0.55, None, 1e9)


def test_no_driver_or_one_that_fails_is_no_meter_and_no_error() -> None:
    assert find_meter(load=only()) is None  # type: ignore[arg-type]
    assert find_meter(load=only(nvidia=Nvml(broken=9))) is None  # type: ignore[arg-type]


def test_a_meter_that_fails_later_is_not_asked_again_and_the_network_is_still_read() -> None:
    class Failing:
        asked = 0

        def read(self) -> tuple[None, None, None]:
            self.asked += 1
            raise OSError("gone")

    meter = Failing()
    sampler = DeviceSampler(meter)
    sampler.look()
    sampler.look()
    first, second = sampler.take()
    assert meter.asked == 1
    assert first.busy is None
    assert second.sent_bytes >= first.sent_bytes >= 0
    assert len(sampler.take()) == 1


def test_readings_become_the_numbers_of_a_step() -> None:
    times = [0.1 * place for place in range(41)]
    busy = [0.0 if place % 4 == 0 else 1.0 for place in range(41)]
    sent = [1e6 * place for place in range(41)]
    found = summarize_readings(times, num_steps=10, busy=busy, sent_bytes=sent, received_bytes=sent)
    assert found["gpu_mean"] == pytest.approx(0.75)
    assert found["gpu_idle_s"] + found["gpu_burst_s"] == pytest.approx(0.4)
    assert found["sent_mean"] == pytest.approx(1e7)
    assert "memory_mean" not in found
    assert summarize_readings(times[:1], num_steps=1) == {}


def test_a_sampler_reads_by_itself_until_it_is_stopped() -> None:
    sampler = DeviceSampler(NvmlMeter(Nvml()), interval_s=0.001)
    sampler.start()
    while len(sampler._readings) < 3:
        pass
    sampler.stop()
    readings = sampler.take()
    assert all(one.busy == 0.87 for one in readings)
    assert sampler._thread is None
