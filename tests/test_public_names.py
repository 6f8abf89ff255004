import subprocess
import sys

import pytest

import traincast


@pytest.mark.parametrize("name", traincast.__all__)
def test_every_public_name_can_be_used(name: str) -> None:
    assert getattr(traincast, name) is not None


def test_verbs_stay_verbs_after_their_rooms_are_loaded() -> None:
    import traincast.capture
    import traincast.forecast

    assert callable(traincast.forecast)
    assert callable(traincast.capture)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'forcast'"):
        _ = traincast.forcast


def test_a_forecast_of_a_catalogue_workload_imports_no_torch() -> None:
    code = (
        "import sys; from traincast import Job, catalog, forecast; "
        "job = Job(graph=catalog.workload('resnet50', batch=8)); "
        "forecast(job, catalog.cluster(device='v100', nodes=1, devices_per_node=1)); "
        "print([name for name in ('torch', 'pandas', 'scipy', 'lightgbm', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
