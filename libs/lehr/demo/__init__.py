"""A real small model and real data for the demonstration and for tests, made on this machine."""
