"""Our schedules beside those of published simulators, job by job."""
