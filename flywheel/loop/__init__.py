"""The daemon: what runs next, and what a finished run means."""
