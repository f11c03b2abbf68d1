"""Many songs, of the real architecture at its tiny size: none lost, nothing piles up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_schemas.events import Event
from broker_schemas.job import Status, fold
from producer.submit import Full, Limits
from tests.waiting import until


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


async def sing(patron, nursery, seed: int, frames: int) -> Status:
    job = (await patron.submit(nursery.song(seed, frames), reserve_bytes=1, body=seed)).id
    return fold([item async for item in patron.jobs.follow(job) if isinstance(item, Event)]).status


async def nothing_left(patron) -> bool:
    """The keys' ttl is over, and sweepers have been."""
    return not [key for key in await patron.client.keys() if b"job_" in key]


@pytest.mark.redis
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("nursery", [pytest.param(16, id="real")], indirect=True)
async def test_200_songs_in_a_row_and_64_at_once(patron, nursery, server):
    patron.limits = Limits(ttl_s=5)
    workers = [nursery.start("talker"), nursery.start("acoustic")]
    for seed in range(40):  # until allocators have settled
        assert await sing(patron, nursery, seed, 12) is Status.COMPLETED
    await until(lambda: nothing_left(patron))
    memory = [resident_mib(pid) for pid in workers]
    used = (await patron.client.info("memory"))["used_memory"]
    for seed in range(200):
        assert await sing(patron, nursery, seed, 12) is Status.COMPLETED
    grown = [resident_mib(pid) - before for pid, before in zip(workers, memory, strict=True)]
    assert max(grown) < 12, grown  # MiB over 200 songs
    ended = await asyncio.gather(*(sing(patron, nursery, seed, 40) for seed in range(64)))
    assert ended == [Status.COMPLETED] * 64
    await until(lambda: nothing_left(patron))
    after = (await patron.client.info("memory"))["used_memory"]
    assert after - used < 512 * 1024, (used, after)


@pytest.mark.redis
async def test_over_the_bounded_queue(patron, nursery):
    patron.limits = Limits(max_jobs=8)
    for seed in range(8):
        await patron.submit(nursery.song(seed, 100), reserve_bytes=1, body=seed)
    with pytest.raises(Full):
        await patron.submit(nursery.song(9, 100), reserve_bytes=1, body=9)
    nursery.start("talker")
    nursery.start("acoustic")

    async def accepted() -> bool:
        try:
            await patron.submit(nursery.song(9, 100), reserve_bytes=1, body=9)
        except Full as full:
            assert 1 <= full.retry_after <= 600
            return False
        return True

    await until(accepted)
