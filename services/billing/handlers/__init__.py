"""Use cases of billing; each is one transaction."""
