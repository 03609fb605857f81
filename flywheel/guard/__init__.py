"""The memory guard of a run: a process of its own that ends an engine before the box runs dry.

``rule`` decides and ``limits`` draws the lines, both pure; ``memory`` reads what is available,
``victim`` ends a run's processes, ``watch`` is the loop, ``word`` what it leaves behind, ``link``
the supervisor's side and ``replay`` the gate that drives the real process with recorded traces.
"""
