"""What billing decides: pure functions of leases, prices and holds."""
