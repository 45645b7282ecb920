"""The shared kernel (bottom) and the composition root (top) of Sickbay.

The kernel is pure: envelope, events, codec, decider, quantities, policy, topics, errors. Only ``sickbay.cli`` imports the
stages ``ingest``, ``streams`` and ``projections``; nothing else here may.
"""
