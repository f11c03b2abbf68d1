"""Many songs, of the real architecture at its tiny size: none lost, nothing piles up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_schemas.job import Status
from producer.submit import Full, Limits


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


async def sing(patron, nursery, seed: int, frames: int) -> Status:
    job = (await patron.submit(nursery.song(seed, frames), reserve_bytes=1, body=seed)).id
    async for _ in patron.jobs.follow(job):
        pass
    return (await patron.jobs.state(job)).status


@pytest.mark.redis
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("nursery", ["real"], indirect=True)
async def test_200_songs_in_a_row_and_64_at_once(patron, nursery, server):
    patron.limits = Limits(ttl_s=1)
    workers = [nursery.start("talker"), nursery.start("acoustic")]
    for seed in range(40):  # until allocators have settled
        assert await sing(patron, nursery, seed, 12) is Status.COMPLETED
    memory = [resident_mib(pid) for pid in workers]
    used = (await patron.client.info("memory"))["used_memory"]
    for seed in range(200):
        assert await sing(patron, nursery, seed, 12) is Status.COMPLETED
    grown = [resident_mib(pid) - before for pid, before in zip(workers, memory, strict=True)]
    assert max(grown) < 12, grown  # MiB over 200 songs
    ended = await asyncio.gather(*(sing(patron, nursery, seed, 40) for seed in range(64)))
    assert ended == [Status.COMPLETED] * 64
    await asyncio.sleep(3)  # the keys' ttl, and a sweep
    left = [key for key in await patron.client.keys() if b"job_" in key]
    assert not left
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
    async with asyncio.timeout(30):
        while True:
            try:
                return await patron.submit(nursery.song(9, 100), reserve_bytes=1, body=9)
            except Full as full:
                assert 1 <= full.retry_after <= 600
                await asyncio.sleep(0.1)
