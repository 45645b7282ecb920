"""Verified return: the probe and the canary that custody asks for, as Jobs of the operator, on the one device that is in question."""
