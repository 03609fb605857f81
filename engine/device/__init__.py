"""The engine on a GPU: weights as stored, state and positions on the device, rounds as graphs."""
