"""The scheduler extender: keeps Pods off nodes that custody or the ledger knows to be short of what they ask."""
