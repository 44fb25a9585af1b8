"""Messages between processes, and the objects of the OpenAI API. Data only, no behaviour."""
