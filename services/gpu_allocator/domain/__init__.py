"""Decisions about nodes, GPUs and leases; values in, values out."""
