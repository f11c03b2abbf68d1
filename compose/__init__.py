"""Where the parts are put together: the command, the embedded mode, the containers. The only package that imports all."""
