"""The HTTP side: jobs, their sound, OpenAI's speech route. Imports only `broker_schemas` and `producer`."""
