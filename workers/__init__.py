"""The workers: the talker, the acoustic stage, and what both need to own a job. Never imports the api."""
