"""HTTP to answers: forecasts, fits, plans and schedules as JSON, with one offline page in front of them."""
