"""The training corpus of the embedded checkpoint, built from seeds.

Each generator module owns one category of chats and exposes ``make(rng) -> Chat``: a pure function
of the random stream that it is given. ``build`` turns chats and source texts into token files.
"""
