"""Compares forecasts with measurements and with published baselines."""
