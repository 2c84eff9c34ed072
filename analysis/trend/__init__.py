"""Where daily figures are going: a trend with a weekly season. Python workers run it: it knows nothing of Spark."""
