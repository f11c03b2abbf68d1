"""Training a small voice: the texts it learns to read, and what is made of them.

Nothing here is imported when models are served.
"""
