"""Decisions to the outside world: alerts, device taints, the scheduler extender, verification, the mover."""
