"""Use cases of the allocator; one transaction each."""
