"""A chat in the terminal, over any server that speaks OpenAI's chat completions."""
