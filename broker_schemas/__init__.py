"""What travels over the broker: events, key names, the fold, and the scripts that change a job's keys together.

Imports nothing else of the project; every other package imports this one.
"""
