"""Where the time of a step goes: named phases, their bytes, and what is left to gain in each.

Timing a part changes the whole, so a profile is marked as one and never counts as a measurement:
its JSON and its log say mode `profile`, and whoever judges clean runs refuses it.
"""
