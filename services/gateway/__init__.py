"""The one address that outside callers use: it knows who calls and forwards to the services."""
