"""Our schedules beside those of published simulators, job by job: `python -m research.simulators`."""
