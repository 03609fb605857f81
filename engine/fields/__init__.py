"""What the configuration's fields are, for whoever proposes a value."""
