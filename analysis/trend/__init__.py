"""Forecasts of daily figures, with statsmodels and without Spark: what executors run for `forecast`."""
