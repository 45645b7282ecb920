"""Exclusion of DRA devices from scheduling: one DeviceTaintRule for each episode (KEP-5055)."""
