"""Custody: for each device, is it fit for new work, and what is being done about it (design, section 7).

``state`` holds the data, ``device`` and ``node`` the rules at one moment of event time, ``moves`` the workloads, ``timeline``
puts late facts where they belong, and ``aggregate`` is the decider that the shells use. Everything here is pure.
"""
