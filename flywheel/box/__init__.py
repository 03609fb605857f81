"""The machine: its device, its lock, its processes, its clock."""
