"""What clients do with jobs: over HTTP by `Songline`; at the broker, as the api does. Imports only `broker_schemas`.

All that is named here needs httpx, and nothing else of the project's dependencies.
"""

from producer.async_client import AsyncJob, AsyncSongline
from producer.client import Job, Songline
from producer.errors import JobEnded, NotInTime, Refused, SonglineError, Unreachable
from producer.sound import Chunk

__all__ = [
    "AsyncJob",
    "AsyncSongline",
    "Chunk",
    "Job",
    "JobEnded",
    "NotInTime",
    "Refused",
    "Songline",
    "SonglineError",
    "Unreachable",
]
