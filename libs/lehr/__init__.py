"""What every service and client of Lehr shares."""
