"""The engine behind HTTP: OpenAI's and Anthropic's protocols on one machine, for one model."""
