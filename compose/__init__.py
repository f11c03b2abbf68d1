"""Where the parts are put together: the command, the embedded mode, the containers.

Only this package imports all others.
"""
