"""Qwen3-TTS, 12 Hz: text in, speech out.

Importing the package loads neither torch nor transformers, so that the api can read the contract alone.
"""
