"""The engine behind HTTP: OpenAI chat completions on one machine, for one model."""
