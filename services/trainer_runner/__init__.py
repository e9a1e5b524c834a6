"""The trainer_runner service."""
