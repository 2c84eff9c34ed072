"""Coverage-guided fuzzing (`make fuzz`): targets with their invariants, seeds, and the driver around atheris."""
