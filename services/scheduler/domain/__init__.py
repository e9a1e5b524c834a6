"""What a job is and what becomes of it: pure values and decisions."""
