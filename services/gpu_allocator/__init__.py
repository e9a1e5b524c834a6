"""The gpu_allocator service."""
