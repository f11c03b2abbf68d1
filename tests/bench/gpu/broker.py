"""A broker for hosts without redis-server: fakeredis behind a port. Keeps nothing, and is slower than the real one.

python -m tests.bench.gpu.broker PORT
"""

from __future__ import annotations

import sys

from fakeredis import TcpFakeServer


def main() -> None:
    server = TcpFakeServer(("127.0.0.1", int(sys.argv[1])), server_type="redis", server_version=(7,))
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
