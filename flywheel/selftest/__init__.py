"""The loop's own proof: every fault that it must survive, injected for real on this box."""
