"""What is measured: one program per question."""
