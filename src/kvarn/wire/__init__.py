"""Messages between processes, and the objects of OpenAI's and Anthropic's APIs: data and how it is read and written."""
