"""Moves of workloads off quarantined devices, carried out.

``declared`` and ``pods`` read what a Pod says, ``replacing`` judges what came in its place, ``limits`` counts, ``plan`` decides the
next step of one move, ``owners`` words what its owner is told: all pure. ``cluster``, ``hooks`` and ``execution`` do what was
decided, ``mover`` brings it together. Custody decides who is to be moved and who may act (``streams.custody.moves``).
"""
