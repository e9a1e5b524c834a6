"""The checkpoint_store service."""
