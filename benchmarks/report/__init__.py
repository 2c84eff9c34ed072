"""What becomes of measurements: statistics, tables, pictures, documents."""
