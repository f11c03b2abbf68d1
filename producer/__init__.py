"""What a client of the broker does with jobs: submit, cancel, read and follow. Imports only `broker_schemas`."""
