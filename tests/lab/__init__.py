"""The laboratory: an embedded Kafka, the demo, generators of schemas and fleets. Not installed."""
