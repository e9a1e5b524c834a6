"""Rows of the allocator and the values that they stand for."""
