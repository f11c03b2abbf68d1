"""What a talker's engine does on a GPU, as tables that anyone with one can make: see `python -m tests.bench.gpu -h`."""
