"""Side by side in one run: this engine plain, with speculation, and transformers' own generate."""
