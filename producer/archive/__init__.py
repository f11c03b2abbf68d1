"""Finished jobs, kept beyond their keys: their sound and their facts, in a folder or an object store."""
