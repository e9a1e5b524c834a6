"""Prices time on GPUs, holds money before it is spent, and keeps the ledger."""
