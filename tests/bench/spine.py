"""What the event spine costs, on this machine, in one run.

    python -m tests.bench.spine [--songs 20] [--rounds 11] [--cancels 200] [--json FILE]

First with an instant model: processor time, Redis operations and bytes per window. Then with the real architecture at
its tiny size: the first chunk and the whole song through the pipeline (worker processes, a real redis-server with every
write synced), beside the same torch code called directly, in turn; medians. Last, how long a cancel takes to free its
rows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from broker_schemas.connection import RedisBroker
from producer.follow import Chunk
from producer.submit import JobIds, Limits, Producer
from tests.chaos.conftest import Nursery
from tests.redis_server import RedisServer
from tests.tiny_checkpoint import tiny_checkpoint
from workers import run
from workers.models.family import Window, load_family
from workers.settings import load
from workers.talker.frames import FrameHistory

FRAMES = 1100


def cpu_s(pid: int) -> float:
    """User and system seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def counters(client, workers: list[int]) -> dict[str, float]:
    info = await client.info()
    return {
        "broker_cpu_ms": 1000 * (info["used_cpu_sys"] + info["used_cpu_user"]),
        "worker_cpu_ms": 1000 * sum(cpu_s(pid) for pid in workers),
        "operations": info["total_commands_processed"],
        "bytes_in": info["total_net_input_bytes"],
        "bytes_out": info["total_net_output_bytes"],
    }


async def follow(producer: Producer, order) -> tuple[float, float, int]:
    """(seconds to the first chunk, to the end, chunks) of one job."""
    began, first, chunks = time.perf_counter(), 0.0, 0
    job = (await producer.submit(order, reserve_bytes=1, body=1)).id
    async for item in producer.jobs.follow(job):
        if isinstance(item, Chunk):
            chunks += 1
            first = first or time.perf_counter() - began
    return first, time.perf_counter() - began, chunks


async def per_window(producer: Producer, nursery: Nursery, songs: int) -> dict[str, float]:
    """Costs of the instant model's songs, and of idling for as long, per window."""
    workers = [nursery.start("talker"), nursery.start("acoustic")]
    await follow(producer, nursery.song(0, FRAMES))
    before, began, windows = await counters(producer.client, workers), time.perf_counter(), 0
    for seed in range(songs):
        windows += (await follow(producer, nursery.song(seed, FRAMES)))[2]
    took = time.perf_counter() - began
    after = await counters(producer.client, workers)
    await asyncio.sleep(took)
    idle = await counters(producer.client, workers)
    costs = {name: (after[name] - before[name]) / windows for name in before}
    return costs | {f"idle_{name}": (idle[name] - after[name]) / windows for name in before}


def direct(talker: run.LoadedTalker, acoustic: run.LoadedAcoustic, order) -> tuple[float, float]:
    """(seconds to the first chunk, to the end) of the same torch code, with nothing around it."""
    plan = load_family("minimax_music3").plan(order)
    history = FrameHistory(
        "direct", order, order.params["max_new_tokens"], talker.model.lead, forced=np.empty((0, 0), np.int16)
    )
    began, first, state, windows, frames = time.perf_counter(), 0.0, {}, 0, []
    talker.runner.admit(history, talker.model.prompts(order))
    while True:
        if not history.reason:
            talker.runner.step()
            frames += history.waiting
            history.waiting, history.sent = [], history.frames
        done = plan.count(history.frames) if history.reason else plan.whole(history.frames)
        if windows < done:
            start, end = plan.bounds(windows, history.frames)
            last = bool(history.reason) and windows + 1 == done
            window = Window(np.stack(frames[start:end]), windows, last, order.seed, state, check=lambda: None)
            [(_, state)] = acoustic.model.windows([window])
            windows += 1
            first = first or time.perf_counter() - began
            if last:
                talker.runner.free("direct")
                return first, time.perf_counter() - began


async def beside_direct(producer: Producer, nursery: Nursery, rounds: int) -> dict[str, float]:
    settings = load("minimax_music3", tiny_checkpoint())
    settings = replace(settings, talker=replace(settings.talker, max_model_len=2048))
    talker, acoustic = run.load_talker(settings), run.load_acoustic(settings)
    nursery.start("talker")
    nursery.start("acoustic")
    orders = [nursery.song(seed, 320) for seed in range(200)]
    long_enough = []
    for order in orders:  # songs that do not end before their first window
        if len(long_enough) == rounds + 1:
            break
        if (await follow(producer, order))[2] >= 2:
            long_enough.append(order)
    timed = []
    for order in long_enough:
        pipeline = (await follow(producer, order))[:2]
        timed.append((*pipeline, *direct(talker, acoustic, order)))
    names = ("pipeline_first_ms", "pipeline_total_ms", "direct_first_ms", "direct_total_ms")
    medians = {
        name: 1000 * statistics.median(values) for name, values in zip(names, zip(*timed[1:], strict=True), strict=True)
    }
    added = 1000 * statistics.median(row[0] - row[2] for row in timed[1:])
    return medians | {"added_to_first_chunk_ms": added, "rounds": len(timed) - 1}


async def cancelling(producer: Producer, nursery: Nursery, cancels: int) -> dict[str, float]:
    """From a cancel's event to the event that frees its rows, by the broker's clock, with another song running."""
    nursery.start("talker")
    nursery.start("acoustic")
    beside = (await producer.submit(nursery.song(0, 9000), reserve_bytes=1, body=1)).id
    took = []
    for seed in range(cancels):
        job = (await producer.submit(nursery.song(seed, 9000), reserve_bytes=1, body=1)).id
        while not (await producer.jobs.state(job)).admitted_at:
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.05)
        state = await producer.cancel(job, by_whom="bench")
        while not (await producer.jobs.state(job)).rows_freed:
            await asyncio.sleep(0.002)
        freed = next(event.at for event in await producer.jobs.events(job) if event.type == "rows.freed")
        took.append(freed - state.ended_at)
    await producer.cancel(beside, by_whom="bench")
    took.sort()
    return {"cancels": cancels, "p50_ms": took[len(took) // 2], "p99_ms": took[int(0.99 * len(took))]}


async def on_a_server(model: str, work: Callable[[Producer, Nursery], Awaitable[dict[str, float]]]) -> dict[str, float]:
    """Run a measurement on an empty redis-server, with worker processes of a model."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        nursery = Nursery(server.url, model, Path(folder) / "workers.log")
        client = RedisBroker(server.url).async_client()
        try:
            return await work(Producer(client, ids=JobIds(b"bench"), limits=Limits(), name="bench"), nursery)
        finally:
            await client.aclose()
            nursery.close()
            server.kill()


async def measure(songs: int, rounds: int, cancels: int) -> dict[str, dict[str, float]]:
    tiny = str(tiny_checkpoint())
    return {
        "per window, instant model": await on_a_server("instant", partial(per_window, songs=songs)),
        "first chunk, tiny model": await on_a_server(tiny, partial(beside_direct, rounds=rounds)),
        "cancel to freed rows, tiny model": await on_a_server(tiny, partial(cancelling, cancels=cancels)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--songs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--cancels", type=int, default=200)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = asyncio.run(measure(args.songs, args.rounds, args.cancels))
    for name, values in results.items():
        print(name)
        for measured, value in values.items():
            print(f"  {measured:28}{value:12.2f}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
