"""Whole trackers in one process: a simulation of journals, standbys, recoveries and clients on a virtual clock.

`schedule` runs every thread one at a time, as a seed draws it, and can end a process wherever it waits. `stores` holds
the stores that delay, fail, and lose what they had. `world` has the trackers, their clients and what must hold.
"""
