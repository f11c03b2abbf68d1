"""Training a small voice, from texts to checkpoint.

`__main__` has the steps in their order; docs/training.md tells why. Nothing here is imported when models are served.
"""
