"""Use cases: load, decide, save, tell; one transaction each."""
