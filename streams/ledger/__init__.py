"""The ledger: what each node can still give, and whether a new claim may come (docs/ledger.md).

Pure: facts in, decisions out; no clock, no I/O, no framework.
"""
