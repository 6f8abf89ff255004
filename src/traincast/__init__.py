"""traincast forecasts the time, memory, resource use and cost of distributed training before it runs."""
